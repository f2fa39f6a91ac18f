"""`ftcluster stop`: it stops all named runs, or no run."""

from dataclasses import replace
from pathlib import Path

import pytest

from ftcluster.errors import FtclusterError
from ftcluster.launch import follow
from ftcluster.launch.run_hosts import RunHosts
from ftcluster.operations.runs import runs
from ftcluster_common.protocol.run_state import RunState
from tests.unit.shell import Shell

RUN_HOSTS = RunHosts((Path("hosts.ini"),), ("node0",), "ftcluster", "/opt/ftcluster")
STOPPED = RunState("a-1", "stopped", "mrpc", ("node0",), 3, 20, 99, 100.0, 5.0, "")
RUNS = ("a-1", "b-1", "c-1")


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the runs that were ended; b-1 cannot be ended."""
    ended: list[str] = []

    def find(_connection: object, name: str, _view: object) -> tuple[RunHosts, str]:
        [run] = [run for run in RUNS if run.startswith(name)] or [""]
        if not run:
            raise FtclusterError(f"there is no run '{name}' on node0")
        return RUN_HOSTS, run

    def end(_run_hosts: RunHosts, run: str, *, force: bool) -> RunState:
        assert not force
        if run == "b-1":
            raise FtclusterError("run b-1 could not be stopped", "on node0: end it")
        ended.append(run)
        return replace(STOPPED, run=run)

    monkeypatch.setattr(runs, "find", find)
    monkeypatch.setattr(follow, "stop", end)
    return ended


def test_each_run_is_ended_once(ended: list[str], shell: Shell) -> None:
    assert shell("stop a --json").document["run"] == "a-1"
    assert [one["run"] for one in shell("stop a-1 c a --json").document] == ["a-1", "c-1"]
    assert ended == ["a-1", "a-1", "c-1"]


def test_a_misspelt_run_stops_none(ended: list[str], shell: Shell) -> None:
    assert "there is no run 'x'" in shell("stop a x", 1).err
    assert "stop needs the id of a run" in shell("stop", 2).err
    assert ended == []


def test_one_that_cannot_be_ended_keeps_no_other_from_it(ended: list[str], shell: Shell) -> None:
    document = shell(["stop", *RUNS, "--json"], 1).document
    assert document == {
        "state": "failed",
        "error": "run b-1 could not be stopped",
        "hint": "on node0: end it",
        "stopped": ["a-1", "c-1"],
    }
    assert ended == ["a-1", "c-1"]
