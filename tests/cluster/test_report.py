"""`ftcluster report` about a run on this machine, and its pages in a browser."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ftcluster.report.page import render
from tests import browser
from tests.browser import Page
from tests.cluster.conftest import Machine
from tests.unit.report.runs import run_files

DESKTOP, PHONE, A4 = 1200, 360, 718  # pixels of width
MOST_PAGES = 8  # maximum number of printed pages
# for each picture: its name, its size, its number of marks, the size of its smallest text on the
# screen, and how far its texts reach beyond it
PICTURES = """
[...document.querySelectorAll("svg")].map(svg => {
  const box = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll("text")].filter(text => text.textContent.trim());
  const boxes = texts.map(text => text.getBoundingClientRect());
  const scale = box.width / svg.viewBox.baseVal.width;
  return {
    name: svg.getAttribute("aria-label"), width: box.width, height: box.height,
    marks: svg.querySelectorAll("path[aria-label], line, g > path").length,
    text: Math.min(...texts.map(text => parseFloat(getComputedStyle(text).fontSize) * scale)),
    out: Math.max(...boxes.map(one => Math.max(box.left - one.left, one.right - box.right))),
  };
})
"""
SMALLEST_TEXT = """
Math.min(...[...document.querySelectorAll("main *:not(svg *)")]
  .filter(one => [...one.childNodes].some(node => node.nodeType === 3 && node.data.trim()))
  .map(one => parseFloat(getComputedStyle(one).fontSize)))
"""
OVERFLOW = "document.scrollingElement.scrollWidth - document.scrollingElement.clientWidth"


@pytest.fixture(scope="module")
def reported(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page about the machine's first training."""
    path = tmp_path_factory.mktemp("report") / "run.html"
    run = json.loads(machine.first_training.stdout)["run"]
    done = machine.home.run("report", run, "-o", str(path), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"state": "done", "runs": [run], "report": str(path)}
    return path


@pytest.fixture(scope="module")
def side_by_side(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a page about three runs with invented events: up to four hosts, one of them slow."""
    runs = [
        run_files(f"mrpc-20261123-013759-{hosts}abc", hosts=hosts, slow=1, restart=hosts == 4)
        for hosts in (1, 2, 4)
    ]
    path = tmp_path_factory.mktemp("report") / "runs.html"
    path.write_text(render(runs, datetime.now(UTC)))
    return path


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    program = browser.program()
    assert program
    with browser.browser(program, tmp_path_factory.mktemp("browser")) as found:
        yield found


def test_what_a_real_run_reports(reported: Path) -> None:
    text = re.sub(r"<svg .*?</svg>|<[^>]+>", " ", reported.read_text(), flags=re.DOTALL)
    assert re.search(r"A step takes \d+ ms: [\d.]+ % compute", text)
    assert re.search(r"Training reaches [\d.]+ % of the matmul peak", text)
    assert "All ranks are on localhost" in text
    assert "rank 1: CPUs" in text


@pytest.mark.needs("browser")
@pytest.mark.parametrize("width", [DESKTOP, PHONE])
@pytest.mark.parametrize("name", ["reported", "side_by_side"])
def test_it_is_readable_on_each_screen(
    name: str, width: int, page: Page, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(name)
    page.loaded.clear()
    page.open(path, width)
    assert page.trouble == []
    assert {url for url in page.loaded if not url.startswith("data:")} == {path.as_uri()}
    assert page.value(OVERFLOW) <= 0
    assert page.value(SMALLEST_TEXT) >= 13
    pictures: list[dict[str, Any]] = page.value(PICTURES)
    assert {"Loss", "Activity over time", "Where a step's time goes", "Each rank's time"} < {
        one["name"] for one in pictures
    }
    for one in pictures:
        assert one["width"] > 280, one
        assert one["height"] > 40, one
        assert one["marks"] > 3, one
        assert one["text"] >= 10, one
        assert one["out"] <= 2, one


@pytest.mark.needs("browser")
@pytest.mark.parametrize("name", ["reported", "side_by_side"])
def test_it_prints(name: str, page: Page, request: pytest.FixtureRequest) -> None:
    page.open(request.getfixturevalue(name), A4, media="print")
    assert page.value(OVERFLOW) <= 0
    assert page.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    breaks = "[...document.querySelectorAll('figure')].map(f => getComputedStyle(f).breakInside)"
    assert set(page.value(breaks)) == {"avoid"}
    pdf = page.pdf()
    assert pdf.startswith(b"%PDF")
    pages = len(re.findall(rb"/Type\s*/Page\b", pdf))
    assert 1 <= pages <= MOST_PAGES
