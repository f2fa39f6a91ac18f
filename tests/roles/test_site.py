"""The documentation site, built as for users and opened in a real browser."""

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import browser
from tests.programs import ROOT

WIDTH = 1280
# code that is cut off, and tables that are wider than their column
OVERFLOWING = """[...document.querySelectorAll('.highlight pre, .table-wrapper')]
    .filter(box => box.scrollWidth > box.clientWidth + 1).map(box => box.innerText.slice(0, 60))"""
RESULTS = "[...document.querySelectorAll('#search-results li a')].map(link => link.href)"


@pytest.fixture(scope="module")
def site() -> Path:
    """Yield the first page of the built site."""
    done = subprocess.run([ROOT / "scripts/docs"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Page]:
    program = browser.program()
    assert program
    with browser.browser(program, tmp_path_factory.mktemp("browser")) as opened:
        yield opened


def test_the_site_is_built_without_a_warning_and_has_each_page(site: Path) -> None:
    start = site.read_text(encoding="utf-8")
    for path in (ROOT / "docs").glob("*.md"):
        assert f'href="{path.stem}.html' in start or path.stem == "index", "not in the navigation"
    assert (site.parent.parent / "index.html").is_file()


def test_each_kind_of_page_has_a_caption(site: Path) -> None:
    captions = re.findall(r'class="caption-text">([^<]+)<', site.read_text(encoding="utf-8"))
    assert {caption.partition(":")[0] for caption in captions} == {
        "Tutorials", "How-to", "Reference", "Explanation", "The project"
    }  # fmt: skip


@pytest.mark.needs("browser")
def test_no_code_is_cut_off_and_no_table_overflows(site: Path, page: browser.Page) -> None:
    wide = {}
    for path in sorted([*site.parent.glob("*.html"), site.parent.parent / "README.html"]):
        page.open(path, WIDTH)
        if boxes := page.value(OVERFLOWING):
            wide[path.name] = boxes
    assert wide == {}


@pytest.mark.needs("browser")
def test_a_long_line_without_the_sites_rules_would_be_cut_off(
    site: Path, page: browser.Page
) -> None:
    page.open(site.parent / "migrate.html", WIDTH)
    page.value("document.querySelector('link[href*=\"site.css\"]').remove()")
    assert page.value(OVERFLOWING)


@pytest.mark.needs("browser")
@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("air gap", "faq.html"),
        ("air gap", "offline.html"),
        ("offline", "offline.html"),
        ("deploy", "deploy.html"),
        ("uninstall", "uninstall.html"),
        ("FAQ", "faq.html"),
        ("AMX", "amx.html"),
        ("resume", "resume.html"),
    ],
)
def test_a_search_finds_the_page(words: str, wanted: str, site: Path, page: browser.Page) -> None:
    page.open(site.parent.parent / "search.html", WIDTH)
    page.value(f"location.search = '?q={words.replace(' ', '+')}'")
    found: list[str] = []
    deadline = time.monotonic() + 10
    while not any(f"/{wanted}" in link for link in found) and time.monotonic() < deadline:
        time.sleep(0.1)
        found = page.value(RESULTS)
    assert any(f"/{wanted}" in link for link in found), found
