"""What the pages link to and name is there."""

import re
from pathlib import Path

import pytest

from tests.programs import ROOT

PAGES = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/*.md"),
    *ROOT.glob("roles/*/README.md"),
    ROOT / "bench/README.md",
    ROOT / "tests/testbed/README.md",
    *ROOT.glob("bench/notes/*.md"),
    ROOT / "tests/security.md",
    ROOT / "tests/engine/guards.md",
    ROOT / "tests/unit/planning/golden/README.md",
]
TESTS = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def anchors(page: Path) -> set[str]:
    """The names that a page's headings have as link targets."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.is_file(), link  # the site has no folders
        assert not anchor or anchor in anchors(target), link


@each_page
def test_tests_that_a_page_names_exist(page: Path) -> None:
    named = re.findall(r"`(?:\S+/)?(test_\w+\.py)`", page.read_text(encoding="utf-8"))
    assert set(named) <= TESTS
