import pytest

from ftcluster.text.host_names import short_names


@pytest.mark.parametrize(
    ("names", "short"),
    [
        ([], ""),
        (["a"], "a"),
        (["node1", "node2", "node3"], "node1-node3"),
        (["node9", "node10", "node11"], "node9-node11"),
        (["n08", "n09", "n10"], "n08-n10"),
        (["head", "node1", "node2", "node4"], "head, node1-node2, node4"),
        (["n1.dc2", "n2.dc2", "n2.dc3"], "n1.dc2-n2.dc2, n2.dc3"),
        (["10.0.0.1", "10.0.0.2"], "10.0.0.1-10.0.0.2"),
        (["b", "a"], "b, a"),
    ],
)
def test_consecutive_names(names: list[str], short: str) -> None:
    assert short_names(names) == short
