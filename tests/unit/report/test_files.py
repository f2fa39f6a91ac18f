"""The sources of a run's record and events for a report."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ftcluster.errors import FtclusterError
from ftcluster.launch.record import begin_record, record_dir
from ftcluster.launch.run_hosts import RunHosts
from ftcluster.report import files
from tests.unit.report.runs import events

RUN = "mrpc-20261123-013759-2872"
RUN_HOSTS = RunHosts((Path("inventory.ini"),), ("node1",), "ftcluster", "/opt/ftcluster")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the files in the run's folder on the head."""
    found: dict[str, str] = {}

    def copy_logs(run_hosts: RunHosts, run: str, copies: Mapping[str, Path]) -> None:
        assert (run_hosts, run) == (RUN_HOSTS, RUN)
        for file, destination in copies.items():
            destination.write_text(found[file])

    monkeypatch.setattr(files, "copy_logs", copy_logs)
    return found


def lines(some: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(event) + "\n" for event in some)


def recorded(some: list[dict[str, Any]]) -> None:
    begin_record(RUN, {"recipe": {"name": "mrpc"}})
    (record_dir(RUN) / "events.jsonl").write_text(lines(some))


def test_a_run_that_was_followed_to_its_end_is_here() -> None:
    recorded(events())
    found = files.ended_here(RUN)
    assert found
    assert (found.run, found.record["recipe"], found.events) == (RUN, {"name": "mrpc"}, events())


def test_else_its_head_has_the_events(head: dict[str, str]) -> None:
    assert files.ended_here(RUN) is None
    recorded(events()[:3])
    assert files.ended_here(RUN) is None
    head["events.jsonl"] = lines(events()) + '{"event": "st'  # a line that is being written
    found = files.from_head(RUN_HOSTS, RUN)
    assert found.record["recipe"] == {"name": "mrpc"}
    assert found.events == events()


def test_of_another_control_nodes_run_the_head_has_all(head: dict[str, str]) -> None:
    head |= {"events.jsonl": lines(events()), "job.json": '{"recipe": {"name": "qqp"}}'}
    found = files.from_head(RUN_HOSTS, RUN)
    assert found.record == {"run": RUN, "recipe": {"name": "qqp"}}


def test_a_run_without_events(head: dict[str, str]) -> None:
    recorded([])
    head["events.jsonl"] = ""
    with pytest.raises(FtclusterError, match="has no events yet"):
        files.from_head(RUN_HOSTS, RUN)
