from pathlib import Path

import pytest

from ftcluster.errors import InventoryError
from ftcluster.inventory import read_inventory


def error_of(path: Path) -> str:
    with pytest.raises(InventoryError) as caught:
        read_inventory(path)
    return str(caught.value)


def test_hosts_in_order_with_the_head_group_first(tmp_path: Path) -> None:
    path = tmp_path / "inventory.ini"
    path.write_text("[nodes]\nn[1:3]\n[head]\nn2\n")
    assert read_inventory(path).hosts == ("n2", "n1", "n3")
    path.write_text("[nodes]\nn[1:3]\n")
    assert read_inventory(path).head == "n1"


def test_yaml_inventories(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yml"
    path.write_text("all:\n  hosts:\n    b:\n    a:\n")
    assert read_inventory(path).hosts == ("b", "a")


def test_missing_and_empty(tmp_path: Path) -> None:
    path = tmp_path / "inventory.ini"
    assert "does not exist" in error_of(path)
    path.write_text("# nobody\n")
    assert "has no host" in error_of(path)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("[nodes]\nn1\nn2 foo bar=1\n", 3, "Expected key=value host variable assignment, got: foo"),
        ("n1\n\n[nodes\nn2\n", 3, ""),
        ("n1\n[nodes:sons]\nn2\n", 2, "unknown type: sons"),
        ("n1\n[a:children]\nnobody\n", 3, ""),
    ],
)
def test_a_syntax_error_has_file_and_line(tmp_path: Path, text: str, line: int, words: str) -> None:
    path = tmp_path / "inventory.ini"
    path.write_text(text)
    found = error_of(path)
    assert f"inventory.ini:{line}: " in found
    assert words in found


def test_a_syntax_error_in_yaml_has_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yml"
    path.write_text("all:\n  hosts:\n   a: {\n")
    assert "inventory.yml:4: " in error_of(path)
