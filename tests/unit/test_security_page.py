"""Each claim of docs/security.md names tests, and these are there."""

import ast
import re
from functools import cache

from tests.programs import ROOT

HEAD = "| claim | test |"
NAME = re.compile(r"`([\w/]+\.py)::(\w+)`")


def claims(page: str) -> list[tuple[str, str]]:
    """The rows of all tables of claims, as claim and tests."""
    found, inside = [], False
    for line in page.splitlines():
        inside = line == HEAD or (inside and line.startswith("|"))
        if inside and line != HEAD and not line.startswith("|---"):
            _, claim, tests, _ = re.split(r"\s*\|\s*", line)
            found.append((claim, tests))
    return found


@cache
def functions(path: str) -> frozenset[str]:
    """The tests of a file below tests/; none where there is no such file."""
    file = ROOT / "tests" / path
    tree = ast.parse(file.read_text(encoding="utf-8")) if file.is_file() else ast.Module([], [])
    return frozenset(
        one.name
        for one in ast.walk(tree)
        if isinstance(one, ast.FunctionDef) and one.name.startswith("test_")
    )


def problems(page: str) -> list[str]:
    """Claims without a test, and tests that are not there."""
    found = []
    for claim, tests in claims(page):
        if not re.fullmatch(rf"{NAME.pattern}( {NAME.pattern})*", tests):
            found.append(f"no tests in the form `file::test`: {claim}")
        found += [
            f"no test {path}::{name}: {claim}"
            for path, name in NAME.findall(tests)
            if name not in functions(path)
        ]
    return found


def test_each_claim_has_its_tests() -> None:
    page = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    assert problems(page) == []
    parts = re.split(r"(?m)^## ", page)[2:]
    without = [
        part.splitlines()[0] for part in parts if not claims(part) or "### Left open" not in part
    ]
    assert without == [], "each part has a table of claims, and says what is left open"


def test_mistakes_are_seen() -> None:
    here = "`unit/test_security_page.py::test_mistakes_are_seen`"
    assert problems(f"{HEAD}\n|---|---|\n| a | {here} |\n") == []
    for tests in ("", "soon", here.replace("seen", "gone"), here.replace("page", "pages")):
        assert len(problems(f"{HEAD}\n|---|---|\n| a | {tests} |\n")) == 1, tests
