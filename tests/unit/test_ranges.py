import pytest

from ftcluster.ranges import format_cpus, parse_cpus, short_names


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("", ()),
        ("5", (5,)),
        ("0-3,8", (0, 1, 2, 3, 8)),
        ("0-38:2", tuple(range(0, 40, 2))),
        ("0,2-4,9,11", (0, 2, 3, 4, 9, 11)),
    ],
)
def test_lists_of_cpus(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpus(text) == cpus
    assert format_cpus(cpus) == text


def test_a_list_as_the_kernel_writes_it() -> None:
    assert format_cpus(parse_cpus("0,2,4,6,8\n".strip())) == "0-8:2"


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
def test_names_in_a_row(names: list[str], short: str) -> None:
    assert short_names(names) == short
