"""`clean` removes ended runs, and asks before it does."""

import fcntl
import io
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftcluster.cli.main import main
from ftcluster.launch.follow import this_user
from ftcluster.launch.record import record_dir
from ftcluster.launch.run_hosts import RunHosts
from ftcluster.operations.runs import caches, clean
from ftcluster_common.protocol.run_state import RunState
from tests.unit.shell import Shell

RUN_HOSTS = RunHosts((Path("hosts.ini"),), ("head",), "", "/opt/ftcluster")
DAY = 86400.0
OLD = time.time() - 10 * DAY
FAILED = RunState("failed-1", "failed", "r", ("head",), 1, 0, 9, OLD, 5.0, "", "", this_user())
RUNS = (
    FAILED,
    replace(FAILED, run="resumable-1", step=5),
    replace(FAILED, run="resumable-2", state="stopped", checkpoint="/opt/ftcluster/runs/x/c"),
    replace(FAILED, run="done-1", state="done", step=9),
    replace(FAILED, run="running-1", state="running"),
    replace(FAILED, run="others-1", started_by="b on c"),
    replace(FAILED, run="recorded-1", started_by=""),
    replace(FAILED, run="new-1", started=time.time() - 60),
    replace(FAILED, run="ahead-1", started=time.time() + DAY),  # the head's clock is ahead
)
NOT_RESUMABLE = {"failed-1", "recorded-1", "new-1", "ahead-1"}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def removed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the runs that were removed on the hosts."""
    gone: list[str] = []

    def clean_runs(
        _run_hosts: RunHosts, runs: Sequence[str], on_removed: Callable[[str], None]
    ) -> list[str]:
        gone.extend(runs)
        for run in runs:
            on_removed(run)
        return list(runs)

    record_dir("recorded-1").mkdir(parents=True)
    (record_dir("recorded-1") / "run.json").write_text("{}")
    monkeypatch.setattr(clean, "all_runs", lambda *_: (list(RUNS), 0))
    monkeypatch.setattr(clean, "cluster_run_hosts", lambda *_: RUN_HOSTS)
    monkeypatch.setattr(clean, "clean_runs", clean_runs)
    return gone


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ([], NOT_RESUMABLE),
        (["--older-than", "7d"], {"failed-1", "recorded-1"}),
        (["--older-than", "2w"], set()),
        (["--done"], {*NOT_RESUMABLE, "done-1"}),
        (["--resumable"], {*NOT_RESUMABLE, "resumable-1", "resumable-2"}),
        (["--all"], {*NOT_RESUMABLE, "others-1"}),
    ],
)
def test_without_names_only_own_runs_that_cannot_be_resumed(
    words: list[str], names: set[str], removed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["clean", "--yes", "--json", *words]) == 0
    assert set(removed) == names
    assert set(json.loads(capsys.readouterr().out)["removed"]) == names
    assert record_dir("recorded-1").exists() == ("recorded-1" not in names)


def test_named_runs_go_without_a_question_unless_one_runs(removed: list[str]) -> None:
    assert main(["clean", "failed-1", "running-1"]) == 1
    assert removed == []
    assert main(["clean", "others-1", "resumable-1"]) == 0
    assert removed == ["others-1", "resumable-1"]


def test_without_a_terminal_nothing_goes_that_is_not_named(
    removed: list[str], shell: Shell
) -> None:
    shown = shell("clean", 2).err
    assert "4 runs would be removed" in shown
    assert "failed-1" in shown
    assert removed == []
    assert main(["clean", "--dry-run"]) == 0
    assert removed == []


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 1), ("\n", 1), ("", 1)])
def test_a_terminal_is_asked(
    answer: str, code: int, removed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: Any = Terminal()
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    monkeypatch.setattr("sys.stderr", shown)
    assert main(["clean"]) == code
    assert bool(removed) == (code == 0)
    assert "recorded-1" in shown.getvalue()
    assert "others-1" not in shown.getvalue()


@pytest.mark.parametrize("words", [["--older-than", "x"], ["--older-than", "-1d"], ["a", "--all"]])
def test_what_makes_no_sense_is_wrong_usage(words: list[str], removed: list[str]) -> None:
    assert main(["clean", *words]) == 2
    assert removed == []


def test_caches_are_shown_before_they_are_emptied(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheels = tmp_path / "ftcluster/wheels"
    for name in ("native", "busy"):
        (wheels / name).mkdir(parents=True)
        (wheels / name / "a.whl").write_bytes(b"x" * 10_000)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(caches, "all_runs", lambda *_, **__: (list(RUNS), 0))
    monkeypatch.setattr(caches, "cluster_run_hosts", lambda *_: RUN_HOSTS)
    asked: list[tuple[list[str], bool]] = []

    def clear_caches(_: RunHosts, running: list[str], clear: bool) -> dict[str, Any]:
        asked.append((running, clear))
        return {"head": {"models": (3 * 10**9, 10**9)}}

    monkeypatch.setattr(caches, "clear_caches", clear_caches)
    with (wheels / ".busy.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a setup is downloading to the cache
        assert main(["clean", "--cache"]) == 2  # there is no user who could answer
        shown = capsys.readouterr().err
        assert "head               models  3.00 GB  1.00 GB" in shown
        assert (wheels / "native").exists()
        assert main(["clean", "--cache", "--yes", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["caches"]
    assert [one["host"] for one in found] == ["head", "this control node"]
    assert found[1]["bytes"] > found[1]["unused_bytes"] > 10_000
    assert asked == [(["running-1"], False), (["running-1"], True)]
    assert sorted(path.name for path in wheels.glob("[!.]*")) == ["busy"]
    assert main(["clean", "--cache", "--done"]) == 2
