"""The results of the playbooks about runs, and their readers."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from ftcluster.ansible.answers import JOBS_FOUND, SET_FACT
from ftcluster.ansible.inventory import BUNDLED_LOCALHOST
from ftcluster.ansible.playbook import PlaybookOutcome, TaskEvent
from ftcluster.ansible.playbooks import Clean
from ftcluster.errors import FtclusterError
from ftcluster.launch import run_hosts, runs
from ftcluster.launch.run_hosts import RunHosts
from ftcluster.recipe.recipe import load_recipe
from ftcluster_train.io.events import EventWriter
from tests.programs import NODE_PATH
from tests.unit.shell import Said

RUN_HOSTS = RunHosts((Path("hosts.ini"),), ("head", "node1", "node2"), "", "/opt/ftcluster")
RECIPE = load_recipe("quickstart")
JOB: dict[str, Any] = {
    "recipe": json.loads(json.dumps(asdict(RECIPE))),
    "nodes": 2,
    "resume": ["r-0"],
    "ipex": False,
}


def answers(monkeypatch: pytest.MonkeyPatch, **jobs: dict[str, Any]) -> None:
    """Return hosts that respond with their jobs; the other hosts are off."""

    def run_playbook(
        _name: str, _inventories: object, _variables: object,
        on_event: Callable[[TaskEvent], None], **_options: object,
    ) -> PlaybookOutcome:  # fmt: skip
        for host in RUN_HOSTS.hosts:
            if host in jobs:
                facts = {"ansible_facts": {"jobs_found": jobs[host]}}
                on_event(TaskEvent(
                    "ok", "jobs", JOBS_FOUND.task, host, action=SET_FACT, result=facts
                ))  # fmt: skip
        return PlaybookOutcome("done", "")

    monkeypatch.setattr(run_hosts, "run_playbook", run_playbook)


def test_a_training_is_found_without_its_head(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, node1={}, node2={"r-1": JOB})
    found = runs.find_job(RUN_HOSTS, "r")
    assert found == runs.FoundJob("r-1", RECIPE, ("node2", "node1"), 1, ("r-0",), others=("node1",))


def test_a_run_keeps_its_head_and_the_order_of_its_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(
        monkeypatch,
        head={},
        node1={"r-1": JOB},
        node2={"r-1": {**JOB, "hosts": ["node2", "node1"]}},
    )
    assert runs.find_job(RUN_HOSTS, "r-1").hosts == ("node2", "node1", "head")
    # only the first host of the list can be the head
    answers(monkeypatch, node1={"r-1": {**JOB, "hosts": ["node2", "node1"]}}, node2={"r-1": JOB})
    assert runs.find_job(RUN_HOSTS, "r-1").hosts == ("node1", "node2")


@pytest.mark.parametrize(("head", "node1", "saved"), [(False, False, False), (False, True, True)])
def test_one_host_with_a_state_is_enough(
    monkeypatch: pytest.MonkeyPatch, head: bool, node1: bool, saved: bool
) -> None:
    jobs = {"head": {"r-1": {**JOB, "saved": head}}, "node1": {"r-1": {**JOB, "saved": node1}}}
    answers(monkeypatch, **jobs)
    assert runs.find_job(RUN_HOSTS, "r").saved is saved


def test_a_training_with_a_spare_continues_on_as_many_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers(monkeypatch, **{host: {"r-1": JOB} for host in RUN_HOSTS.hosts})
    assert runs.find_job(RUN_HOSTS, "r").nodes == 2


def test_a_head_that_is_off_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: Said
) -> None:
    off = TaskEvent("unreachable", "logs", "Copy the log", "head", "timed out")
    monkeypatch.setattr(
        run_hosts, "run_playbook", lambda *_, **__: PlaybookOutcome("failed", "", (off,))
    )
    with pytest.raises(FtclusterError) as caught:
        runs.copy_logs(RUN_HOSTS, "r-1", {"ranks.log": tmp_path})
    said(caught.value)


def test_a_password_that_sudo_asks_for_is_hinted_at(monkeypatch: pytest.MonkeyPatch) -> None:
    asks = TaskEvent(
        "failed", "runs", "List the runs", "head", "Task failed: Missing sudo password"
    )
    monkeypatch.setattr(
        run_hosts, "run_playbook", lambda *_, **__: PlaybookOutcome("failed", "", (asks,))
    )
    with pytest.raises(FtclusterError) as caught:
        runs.list_runs(RUN_HOSTS)
    assert caught.value.hint == "sudo asks for a password there: pass -K"


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ({}, "none of the cluster's hosts answers"),
        ({"head": {}}, "there is no run 'r' on head"),
        ({"head": {"r-1": JOB}, "node1": {"r-2": JOB}}, "several runs begin with 'r': r-1, r-2"),
        ({"head": {"r-1": {"script": {}}}}, "r-1 on head is not a resumable training"),
        (
            {"head": {"r-1": {**JOB, "nodes": "2"}}},
            "r-1 on head is not a resumable training.*nodes is '2'",
        ),
        ({"head": {"r-1": {**JOB, "resume": ["/etc"]}}}, "not a resumable training.*is '/etc'"),
        (
            {"head": {"r-1": {**JOB, "recipe": {**JOB["recipe"], "batch_size": "x"}}}},
            "not a resumable training.*batch_size",
        ),
        ({"head": {"../r": JOB}}, "head: invalid answer: the id of a run is '../r'"),
        ({"head": {"r-1": []}}, "head: invalid answer: the job of r-1"),
        ({"head": {"r-1": {**JOB, "purpose": "evaluate"}}}, "run r-1 did not train a model"),
    ],
)
def test_what_cannot_be_resumed_is_named(
    monkeypatch: pytest.MonkeyPatch, jobs: dict[str, Any], message: str
) -> None:
    answers(monkeypatch, **jobs)
    with pytest.raises(FtclusterError, match=message):
        runs.find_job(RUN_HOSTS, "r")


def here(prefix: Path, python: str) -> RunHosts:
    """Set up this machine as a cluster, with a program as the Python of its stack."""
    program = prefix / "current/bin/python"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{python}\n")
    program.chmod(0o755)
    return RunHosts((BUNDLED_LOCALHOST,), ("localhost",), "", str(prefix))


def test_runs_of_this_machine_are_listed_without_ansible(tmp_path: Path) -> None:
    head = here(tmp_path, f'PYTHONPATH={NODE_PATH} exec {sys.executable} "$@"')
    for number in range(3):
        folder = tmp_path / f"runs/mrpc-20260101-00000{number}-ab12"
        folder.mkdir(parents=True)
        EventWriter(folder).write("end", state="done", exit_code=0, seconds=1.0)
    names = [one.run for one in runs.list_runs(head)[0]]
    assert sorted(names) == [f"mrpc-20260101-00000{number}-ab12" for number in range(3)]
    assert runs.find_run(head, "mrpc-20260101-000001").state == "done"
    assert [left for _, left in [runs.list_runs(head, most=2)]] == [1]


@pytest.mark.parametrize(
    ("python", "said"),
    [
        ("echo no such module >&2; exit 1", "localhost: no such module"),
        ('echo \'{"runs": 5, "left": 0}\'', "localhost: invalid answer"),
        ("echo oh", "localhost: invalid answer"),
    ],
)
def test_what_its_stack_says_wrongly_is_an_error(tmp_path: Path, python: str, said: str) -> None:
    with pytest.raises(FtclusterError, match=said):
        runs.list_runs(here(tmp_path, python))


def test_what_was_removed_before_a_failure_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of runs are removed in parts, together with their local records."""
    monkeypatch.setattr(runs, "CLEAN_RUNS", 2)
    parts: list[list[str]] = []

    def play(playbook: Clean, *_: object) -> dict[str, list[str]]:
        parts.append(playbook.clean_runs)
        if len(parts) > 1:
            raise FtclusterError("node2 does not answer")
        return {RUN_HOSTS.head: playbook.clean_runs}

    monkeypatch.setattr(runs, "play", play)
    removed: list[str] = []
    with pytest.raises(FtclusterError):
        runs.clean_runs(RUN_HOSTS, ("a-1", "a-2", "a-3"), removed.append)
    assert (parts, removed) == ([["a-1", "a-2"], ["a-3"]], ["a-1", "a-2"])
