"""Each section of docs/security.md has claims in tests/security.md, which name tests that exist."""

import ast
import re
from functools import cache

from tests.programs import ROOT

HEAD = "| claim | test |"
NAME = re.compile(r"`([\w/]+\.py)::(\w+)`")


def claims(page: str) -> list[tuple[str, str]]:
    """Return the rows of all tables of claims, as claim and tests."""
    rows, inside = [], False
    for line in page.splitlines():
        inside = line == HEAD or (inside and line.startswith("|"))
        if inside and line != HEAD and not line.startswith("|---"):
            _, claim, tests, _ = re.split(r"\s*\|\s*", line)
            rows.append((claim, tests))
    return rows


@cache
def functions(path: str) -> frozenset[str]:
    """Return the tests of a file below tests/; none if there is no such file."""
    file = ROOT / "tests" / path
    tree = ast.parse(file.read_text(encoding="utf-8")) if file.is_file() else ast.Module([], [])
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


def problems(page: str) -> list[str]:
    """Return claims without a test, and tests that do not exist."""
    wrong = []
    for claim, tests in claims(page):
        if not re.fullmatch(rf"{NAME.pattern}( {NAME.pattern})*", tests):
            wrong.append(f"no tests in the form `file::test`: {claim}")
        wrong += [
            f"no test {path}::{name}: {claim}"
            for path, name in NAME.findall(tests)
            if name not in functions(path)
        ]
    return wrong


def sections(page: str) -> dict[str, str]:
    """Return the sections of a page by their titles."""
    parts = re.split(r"(?m)^## (.+)\n", page)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_each_claim_has_its_tests() -> None:
    page = (ROOT / "tests/security.md").read_text(encoding="utf-8")
    assert problems(page) == []
    without = [title for title, part in sections(page).items() if not claims(part)]
    assert without == [], "each section has a table of claims"


def test_each_section_of_the_page_has_claims_and_names_what_is_left_open() -> None:
    page, tested = (
        sections((ROOT / name).read_text(encoding="utf-8"))
        for name in ("docs/security.md", "tests/security.md")
    )
    del page["Who is trusted"]
    assert list(page) == list(tested)
    for title, part in page.items():
        protections, _, remaining = part.partition("### Left open\n")
        assert re.search(r"(?m)^- ", protections), title
        assert re.search(r"(?m)^- ", remaining), title


def test_mistakes_are_reported() -> None:
    here = "`unit/test_security_page.py::test_mistakes_are_reported`"
    assert problems(f"{HEAD}\n|---|---|\n| a | {here} |\n") == []
    for tests in ("", "soon", here.replace("reported", "gone"), here.replace("page", "pages")):
        assert len(problems(f"{HEAD}\n|---|---|\n| a | {tests} |\n")) == 1, tests
