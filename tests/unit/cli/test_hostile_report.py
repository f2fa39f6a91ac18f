"""A report about a run of a hostile head: a page, or one line with the host's name."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftcluster.cli.main import main
from ftcluster.operations.runs import report
from ftcluster.report.files import RunFiles
from tests.unit.report.runs import run_files

WHOLE = run_files()
ODD: tuple[Any, ...] = (None, "x", -1, [{}])


def variants() -> list[RunFiles]:
    """Yield the files of a run, each time with one part replaced."""
    records = [{**WHOLE.record, key: odd} for key in (*WHOLE.record, "launch") for odd in ODD]
    at_first = [
        [{**event, key: odd} if event is changed else event for event in WHOLE.events]
        for changed in {event["event"]: event for event in reversed(WHOLE.events)}.values()
        for key in changed
        if key not in ("event", "time")  # the form of these fields is checked when events arrive
        for odd in ODD[:2]
    ]
    found = [replace(WHOLE, record=one) for one in records]
    ranks = [{"rank": 0, "host": "a", "cpus": "0-9999999999", "threads": 1, "memory_nodes": []}]
    # more than the memory can hold
    at_first.append([{"event": "placement", "time": 1.0, "ranks": ranks}])
    return [*found, *(replace(WHOLE, events=one) for one in at_first)]


@pytest.mark.parametrize("each", [40, pytest.param(1, marks=pytest.mark.long)])
def test_a_page_or_one_line_with_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], each: int
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = 0
    for files in variants()[::each]:
        monkeypatch.setattr(
            report, "_files_of", lambda *_, files=files: replace(files, source="xeon1")
        )
        code = main(["report", files.run])
        said = capsys.readouterr().err
        if code:
            refused += 1
            assert code == 1
            assert said.startswith("error: records have an unexpected format"), said
            assert "(xeon1)" in said
            assert len(said) < 500
            assert not any(tmp_path.iterdir())
        for page in tmp_path.iterdir():
            assert page.stat().st_mode & 0o777 == 0o600, "a page has samples"
            page.unlink()
    assert refused
