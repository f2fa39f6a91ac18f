"""The messages of `ftcluster attach` about a failed run."""

import json

import pytest

from ftcluster.ansible.playbook import PlaybookOutcome
from ftcluster.launch.run import Followed
from ftcluster.operations.runs import attach
from ftcluster.progress.state import RunProgress
from tests.unit.shell import Shell

RUN = "quickstart-20260131-101500-7f3a"
EVENTS = (
    {"event": "start", "time": 1.0, "steps": 20, "world_size": 2, "epochs": 2.0},
    {"event": "checkpoint", "time": 2.0, "step": 8, "folder": "/opt/run/checkpoints/checkpoint-8"},
    {"event": "restart", "time": 3.0, "restart": 1, "max_restarts": 1, "message": "killed"},
    {"event": "error", "time": 4.0, "message": "killed by signal 9 (SIGKILL) at step 9",
     "hint": "see who did", "host": "xeon2", "rank": 1},
    {"event": "end", "time": 5.0, "state": "failed", "exit_code": 137, "seconds": 4.0},
)  # fmt: skip


@pytest.fixture(autouse=True)
def failed_run(monkeypatch: pytest.MonkeyPatch) -> None:
    progress = RunProgress(RUN)
    for event in EVENTS:
        progress.add(event)
    followed = Followed(progress, PlaybookOutcome("failed", ""))
    monkeypatch.setattr(attach, "find", lambda *_: (None, RUN))
    monkeypatch.setattr(attach.follow, "attach", lambda *_: followed)


def test_who_failed_where_after_how_many_restarts_and_what_to_do(shell: Shell) -> None:
    assert shell(["attach", RUN], 1).err.splitlines() == [
        f"error: run {RUN} failed after 1 restart: rank 1 on xeon2: "
        "killed by signal 9 (SIGKILL) at step 9",
        f"  see who did; continue it: ftcluster train --resume {RUN}",
    ]


def test_the_document_has_the_same(shell: Shell) -> None:
    document = json.loads(shell(["attach", RUN, "--json"], 1).out)
    assert document["state"] == "failed"
    assert "after 1 restart: rank 1 on xeon2" in document["error"]
