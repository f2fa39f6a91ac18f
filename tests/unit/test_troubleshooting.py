"""The messages on docs/troubleshooting.md are messages of the code."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.programs import ROOT

PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
FIRST = [row.split("|")[1] for row in PAGE.splitlines() if row.startswith("| ")]
QUOTED = [
    part.strip()
    for cell in FIRST
    for quote in re.findall(r"`([^`]+)`", cell)
    for part in quote.split("...")
    if part.strip()
]


def texts(path: Path) -> Iterator[str]:
    """Yield the constant parts of a file's strings."""
    if path.suffix == ".yml":
        yield " ".join(path.read_text(encoding="utf-8").split())
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.fixture(scope="module")
def printed() -> str:
    folders = ("runner", "common", "train", "plugins", "roles", "playbooks")
    files = [
        f for name in folders for kind in ("py", "yml") for f in (ROOT / name).rglob(f"*.{kind}")
    ]
    return "\0".join(text for file in files for text in texts(file))


def test_what_it_quotes_is_what_the_code_prints(printed: str) -> None:
    assert len(QUOTED) > 40
    assert [quote for quote in QUOTED if quote not in printed] == []
