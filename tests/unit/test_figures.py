"""Measured figures and tables on the pages match their files."""

import re

import pytest

from bench import figures, profile
from bench.speed_page import PICTURE, Comparison, bars, comparisons, summary
from tests.programs import ROOT


def test_the_pages_have_the_measurements() -> None:
    assert list(figures.problems()) == [], "run .venv-dev/bin/python -m bench.figures"


def test_each_figure_has_a_file() -> None:
    for name, figure in figures.figures().items():
        for source in figure.source.split(", "):
            assert (ROOT / source).is_file(), name


def test_claims_of_the_readme_are_figures() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert {
        "mrpc_vs_tuned", "sft_vs_tuned", "run_glue_vs_tuned", "faults_survived", "faults_tried",
        "setup_4_hosts_40_percent_first",
    } <= {found[2] for found in figures.FIGURE.finditer(page)}  # fmt: skip


@pytest.mark.parametrize("name", ["README.md", "docs/speed.md", "docs/reliability.md"])
def test_a_changed_figure_is_reported(name: str) -> None:
    """A page that somebody has edited by hand differs from the generated text."""
    values, made = figures.figures(), figures.tables()
    page = (ROOT / name).read_text(encoding="utf-8")
    assert figures.written(page, values, made) == page
    changed = re.sub(r"(<!--figure:\w+-->).+?(<!--/figure-->)", r"\g<1>9.9\2", page)
    assert figures.written(changed, values, made) == page
    with pytest.raises(KeyError):
        figures.written("<!--figure:nobody_measured-->1<!--/figure-->", values, made)


@pytest.mark.parametrize(
    "text",
    [
        "It is 2.5 times as fast.", "about 3 times as many", "takes 86 s", "within 8 %", "0.3 ms",
        "18 to 24 s besides",
    ],
)  # fmt: skip
def test_unmarked_figures_are_found(text: str) -> None:
    assert len(figures.unmarked("docs/speed.md", f"# Title\n\n{text}\n", {})) == 1
    assert figures.unmarked("docs/speed.md", text, {"docs/speed.md": [text]}) == []


@pytest.mark.parametrize(
    "text",
    [
        "at most 1,024 tokens, 4 times", "`--timeout 10 s`", "    takes 86 s", "[x](a.md#3-s)",
        "<!--figure:mrpc_vs_tuned-->2.0<!--/figure--> times as fast",
        "```\n2.5 times\n```", "<!-- table: t -->\n| 86 s |\n<!-- end -->",
    ],
)  # fmt: skip
def test_text_without_figures_is_none(text: str) -> None:
    assert figures.unmarked("docs/speed.md", f"# Title\n\n{text}\n", {}) == []


def test_only_ratios_are_looked_for_on_pages_with_settings() -> None:
    page = "A guardian waits 15 s. It is 2.5 times as fast."
    [problem] = figures.unmarked("docs/run.md", page, {})
    assert "2.5 times" in problem


def test_a_table_has_a_row_for_each_comparison() -> None:
    measured = list(comparisons())
    assert len(measured) >= 8
    assert all(one.ours > 0 and any(one.ratios()) for one in measured)
    one = Comparison("MRPC", "Trainer", 10.0, 16.0, 32.04, "samples/s", 0.731)
    row = "| MRPC | Trainer | 10 | 16 | 32 samples/s | **2.0** | 3.2 | 73% |"
    assert summary([one]).splitlines()[2:] == [row]


def test_the_picture_has_the_ratios_of_the_table() -> None:
    """Rounding twice would write 2.547 as 2.5 in the picture, and 2.55 as 2.6 in the table."""
    measured = list(comparisons())
    table = [row.split("|")[6].strip(" *") for row in summary(measured).splitlines()[2:]]
    assert [row["text"] for row in bars(measured)] == table
    texts = re.findall(r"<text [^>]*>([^<]*)</text>", PICTURE.read_text(encoding="utf-8"))
    assert [text for text in texts if text in {*table}][-len(table) :] == table


def test_shares_of_a_profile_add_up_to_the_step() -> None:
    """Categories without time have no column; all others add up to 100 %."""
    parts = {"matmuls": 1.5, "waiting": 0.0, "Python": 0.3, "other": 0.2}
    found = {"seconds": 2.0, "parts": parts}
    lines = profile.table({"bf16": {"ner": found}}).splitlines()
    assert lines[0] == "| training | step, ms | matmuls | Python | other |"
    assert lines[2:] == ["| ner, bf16 | 2000 | 75.0% | 15.0% | 10.0% |"]
    for precision in figures.read("2026-11-29-profile.json")["profiles"].values():
        for measured in precision.values():
            assert sum(measured["parts"].values()) == pytest.approx(measured["seconds"], rel=0.01)
