"""Following a run over a connection that breaks, and detaching from the run."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.answers import SUPERVISOR_GONE
from rich.console import Console

from ftcluster.ansible.playbook import REFUSE, PlaybookOutcome, TaskEvent
from ftcluster.ansible.signals import Interrupts
from ftcluster.ansible.ssh_words import of_host_key
from ftcluster.cli.ansible_options import extra_variables
from ftcluster.cli.commands import read_arguments
from ftcluster.cli.connection import shown_command
from ftcluster.cluster.saved import Cluster
from ftcluster.errors import Detached, FtclusterError, Interrupted
from ftcluster.launch import follow, run_hosts
from ftcluster.launch.mpirun import render
from ftcluster.launch.record import (
    begin_record,
    complete_from,
    record_dir,
    recorded_run_hosts,
)
from ftcluster.launch.run import Followed, raise_if_stopped
from ftcluster.launch.run_hosts import RunHosts
from ftcluster.launch.training_run import TrainingRun
from ftcluster.planning.plan import plan
from ftcluster.progress.view import TerminalView, View
from ftcluster.recipe.recipe import load_recipe
from ftcluster_common.protocol.run_state import RunState
from tests.unit.clusters import STACKS, cluster, host
from tests.unit.supervisor.test_ssh_causes import printed_by

RUN = "quickstart-20260131-101500-7f3a"
RUN_HOSTS = RunHosts(
    (Path("hosts.ini"),), ("head", "node1"), "ftcluster", "/opt/ftcluster", ("-u", "me")
)


class Said(TerminalView):
    """A view that stores messages."""

    def __init__(self) -> None:
        super().__init__(Console())
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


def event(kind: str, **fields: Any) -> str:
    return json.dumps({"event": kind, "time": 1.0, **fields}) + "\n"


NO_ROOM = TaskEvent("failed", "launch", "Follow the run", "head", "no room", follow.FOLLOW)
GONE = replace(NO_ROOM, message=f"{SUPERVISOR_GONE}; its logs end with")
UNREACHABLE = TaskEvent("unreachable", "attach", "Follow the run", "head", "timed out")


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Record the playbooks that run; each takes its behavior from `scenes`."""
    monkeypatch.setattr(follow, "RECONNECT_PAUSE_SECONDS", 0.0)
    return []


def play(
    monkeypatch: pytest.MonkeyPatch,
    played: list[tuple[str, dict[str, Any]]],
    *scenes: tuple[str, list[TaskEvent], PlaybookOutcome],
) -> None:
    remaining = list(scenes)

    def run_playbook(
        playbook: str, _inventories: object, variables: dict[str, Any],
        on_event: Callable[[TaskEvent], None], **_options: object,
    ) -> PlaybookOutcome:  # fmt: skip
        played.append((playbook.rpartition(".")[2], variables))
        text, events, outcome = remaining.pop(0)
        with follow.events_file(RUN).open("r+") as file:
            file.seek(0, 2)
            file.write(text)
        for one in events:
            on_event(one)
        return replace(outcome, failures=tuple(events))

    monkeypatch.setattr(run_hosts, "run_playbook", run_playbook)


def test_a_lost_connection_is_taken_up_again(
    monkeypatch: pytest.MonkeyPatch, played: list[tuple[str, dict[str, Any]]]
) -> None:
    lost = PlaybookOutcome("failed", "")
    step = event("checkpoint", step=1, folder="/x", seconds=1.0)
    end = event("end", state="done", seconds=9.0, exit_code=0)
    play(
        monkeypatch, played,
        (event("phase", doing="starting the ranks"), [UNREACHABLE], lost),
        ("", [GONE], lost),
        (step + end, [], PlaybookOutcome("done", "")),
    )  # fmt: skip
    view = Said()
    begin_record(RUN, {})
    followed = follow.attach(RUN_HOSTS, RUN, view)
    record = json.loads((record_dir(RUN) / "run.json").read_text())
    assert {"started", "ftcluster"} < record.keys()
    assert record["end"].items() > {"state": "done", "exit_code": 0, "seconds": 9.0}.items()
    assert [name for name, _ in played] == ["attach"] * 3
    away, gone, saved = view.said
    assert "head does not answer" in away
    assert "the supervisor on head is gone" in gone
    assert "checkpoint of step 1" in saved
    assert (followed.progress.state, followed.detached) == ("done", False)
    assert played[0][1]["train_run_dir"] == f"/opt/ftcluster/runs/{RUN}"


def test_what_fails_on_this_machine_starts_no_supervisor(
    monkeypatch: pytest.MonkeyPatch, played: list[tuple[str, dict[str, Any]]]
) -> None:
    """The disk is full, or the host sends unexpected data."""
    phase = event("phase", doing="starting the ranks")
    play(monkeypatch, played, (phase, [NO_ROOM], PlaybookOutcome("failed", "")))
    begin_record(RUN, {})
    view = Said()
    followed = follow.attach(RUN_HOSTS, RUN, view)
    assert [name for name, _ in played] == ["attach"]
    assert view.said == []
    assert followed.outcome.failures == (NO_ROOM,)


def test_a_head_that_stays_away_is_lost(
    monkeypatch: pytest.MonkeyPatch, played: list[tuple[str, dict[str, Any]]]
) -> None:
    monkeypatch.setattr(follow, "RECONNECT_LIMIT_SECONDS", 0.0)
    phase = event("phase", doing="starting the ranks")
    play(monkeypatch, played, (phase, [UNREACHABLE], PlaybookOutcome("failed", "")))
    assert follow.attach(RUN_HOSTS, RUN, Said()).head_lost
    assert len(played) == 1


def test_a_head_whose_key_ssh_refuses_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, played: list[tuple[str, dict[str, Any]]]
) -> None:
    """The message is Ansible's for a real changed key, see openssh.json."""
    message = of_host_key(f"Failed to connect to the host via ssh: {printed_by('changed')}")
    refused = replace(UNREACHABLE, message=message)
    phase = event("phase", doing="starting the ranks")
    play(monkeypatch, played, (phase, [refused], PlaybookOutcome("failed", "")))
    view = Said()
    followed = follow.attach(RUN_HOSTS, RUN, view)
    assert (view.said, followed.head_lost, len(played)) == ([], False, 1)
    assert "its host key differs" in followed.outcome.failures[0].message


def test_a_task_is_shown_if_it_takes_long(
    monkeypatch: pytest.MonkeyPatch, played: list[tuple[str, dict[str, Any]]]
) -> None:
    tasks = [
        TaskEvent("task", "prepare", "Copy"), TaskEvent("changed", "prepare", "Copy", "head"),
        TaskEvent("task", "prepare", "Stop if", action=REFUSE),
    ]  # fmt: skip
    play(monkeypatch, played, ("", tasks, PlaybookOutcome("done", "")))
    shown: list[str] = []
    follow.attach(RUN_HOSTS, RUN, Said(), lambda event: shown.append(event["doing"]))
    assert shown == []
    monkeypatch.setattr(follow, "SHOWN_SECONDS", 0.0)

    def run_playbook(*arguments: Any, on_tick: Callable[[], None], **_: object) -> PlaybookOutcome:
        for task in tasks:
            arguments[3](task)
            on_tick()
        return PlaybookOutcome("failed", "")

    monkeypatch.setattr(run_hosts, "run_playbook", run_playbook)
    follow.attach(RUN_HOSTS, RUN, Said(), lambda event: shown.append(event["doing"]))
    assert shown == ["copy"]


def test_what_refuses_needs_no_name() -> None:
    refusal = TaskEvent("failed", "prepare", "Stop if", "head", "it is used", REFUSE)
    assert refusal.problem == "it is used"
    assert GONE.problem == f"Follow the run: {GONE.message}"


@pytest.mark.parametrize("text", ["", event("end", state="failed", seconds=1.0, exit_code=1)])
def test_what_was_not_launched_or_has_ended_is_not_taken_up(
    monkeypatch: pytest.MonkeyPatch, played: list[tuple[str, dict[str, Any]]], text: str
) -> None:
    play(monkeypatch, played, (text, [UNREACHABLE], PlaybookOutcome("failed", "")))
    assert follow.attach(RUN_HOSTS, RUN, Said()).outcome.state == "failed"
    assert len(played) == 1


def test_a_run_of_another_control_node_is_stopped(
    monkeypatch: pytest.MonkeyPatch, played: list[tuple[str, dict[str, Any]]]
) -> None:
    refused = TaskEvent("failed", "stop", "End the ranks", "head", "the supervisor does not end")
    end = event("end", state="stopped", seconds=1.0, exit_code=143)
    failed = ("", [refused], PlaybookOutcome("failed", ""))
    play(monkeypatch, played, (end, [], PlaybookOutcome("done", "")), failed, failed)
    follow.stop(RUN_HOSTS, RUN)
    with pytest.raises(FtclusterError, match="\n  head: the supervisor does not end") as caught:
        follow.stop(RUN_HOSTS, RUN)
    assert caught.value.hint.endswith(f": ftcluster stop --force {RUN}")
    with pytest.raises(FtclusterError) as caught:
        follow.stop(RUN_HOSTS, RUN, force=True)
    assert "ftcluster check" in caught.value.hint
    assert [variables["stop_force"] for _, variables in played] == [False, False, True]


def test_what_a_launch_says_of_a_host_is_shown(
    monkeypatch: pytest.MonkeyPatch, played: list[tuple[str, dict[str, Any]]]
) -> None:
    notes = [
        TaskEvent("ok", "prepare", "Show where rules are gone", host, "its rules are gone")
        for host in ("node1", "node2")
    ]
    end = event("end", state="done", seconds=9.0, exit_code=0)
    play(monkeypatch, played, (end, notes, PlaybookOutcome("done", "")))
    view = Said()
    begin_record(RUN, {})
    follow.attach(RUN_HOSTS, RUN, view)
    assert view.said == ["note: node1-node2: its rules are gone"]


@pytest.fixture(autouse=True)
def hangs_up() -> Iterator[None]:
    """Restore SIGHUP's effect, even if the tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def launch(view: View) -> Followed:
    """Return a training that this command launches."""
    facts = cluster(host("head"), host("node1"))
    recipe = load_recipe("quickstart")
    decided = plan(facts, recipe, STACKS)
    where = Cluster(RUN_HOSTS.inventories, facts)
    run = TrainingRun(RUN, where, decided, render(decided, RUN), recipe)
    return follow.launch_and_follow(run, view, ())


def signalled(
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    seen: str,
    state: Literal["stopped", "failed"] = "stopped",
) -> list[str]:
    """A signal comes while the first playbook runs; returns the playbooks.

    Args:
        seen: the run's events so far.
        state: the end of the playbook.
    """
    played: list[str] = []

    def run_playbook(
        playbook: str, _inventories: object, _variables: object,
        on_event: Callable[[TaskEvent], None], **_options: object,
    ) -> PlaybookOutcome:  # fmt: skip
        played.append(playbook.rpartition(".")[2])
        if len(played) > 1:
            return PlaybookOutcome("done", "")
        if seen:
            on_event(TaskEvent("task", "launch", "Follow the run", action=follow.FOLLOW))
        with follow.events_file(RUN).open("a") as file:
            file.write(seen)
        os.kill(os.getpid(), number)
        return PlaybookOutcome(state, "")

    monkeypatch.setattr(run_hosts, "run_playbook", run_playbook)
    return played


STARTING = event("phase", doing="starting the ranks")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("seen", ["", STARTING])
@pytest.mark.parametrize("slurm", [False, True])
def test_what_only_follows_a_run_never_stops_it(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals, seen: str, slurm: bool
) -> None:
    if slurm:  # as in a shell of salloc
        monkeypatch.setenv(follow.SLURM_VARIABLE, "1")
    played = signalled(monkeypatch, number, seen)
    with pytest.raises(Detached, match=f"the run continues: ftcluster attach {RUN}") as error:
        follow.attach(RUN_HOSTS, RUN, Said())
    assert played == ["attach"]
    assert error.value.exit_code == 128 + number
    document = error.value.to_dict()
    assert (document["run"], document["state"]) == (RUN, "running")
    assert document["hint"] == f"to stop it: ftcluster stop {RUN}"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("state", ["stopped", "failed"])
def test_the_end_of_a_control_node_ends_no_training(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals, state: Literal["stopped", "failed"]
) -> None:
    played = signalled(monkeypatch, number, STARTING, state)
    with pytest.raises(Detached):
        launch(Said())
    assert played == ["train"]


@pytest.mark.parametrize(
    ("number", "seen", "slurm"),
    [
        (signal.SIGINT, STARTING, False),  # without a terminal for a question
        (signal.SIGTERM, "", False),  # nothing runs yet
        (signal.SIGTERM, STARTING, True),  # shortly before the job's time limit
    ],
)
def test_a_launch_that_is_to_end_stops_its_run(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals, seen: str, slurm: bool
) -> None:
    if slurm:
        monkeypatch.setenv(follow.SLURM_VARIABLE, "1")
    played = signalled(monkeypatch, number, seen)
    followed = launch(Said())
    assert played == ["train", "stop"]
    with pytest.raises(Interrupted, match="stopped: run"):
        raise_if_stopped(followed, {})


def test_a_signal_that_comes_with_the_runs_end_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    end = event("end", state="done", seconds=9.0, exit_code=0)
    played = signalled(monkeypatch, signal.SIGTERM, STARTING + end)
    assert follow.attach(RUN_HOSTS, RUN, Said()).outcome.state == "done"
    assert played == ["attach"]


def test_nohup_is_left_as_it_is() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGHUP)
    assert interrupts.count == 0
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


@pytest.mark.parametrize(("answer", "detached"), [("d\n", True), ("s\n", False), ("", False)])
def test_ctrl_c_of_a_launch_on_a_terminal_asks(
    monkeypatch: pytest.MonkeyPatch, answer: str, detached: bool
) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return answer

        def write(self, text: str) -> None: ...

        def flush(self) -> None: ...

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("sys.stderr", Terminal())
    played = signalled(monkeypatch, signal.SIGINT, STARTING)
    assert launch(Said()).detached is detached
    assert played == ["train", *([] if detached else ["stop"])]


def test_a_record_says_where_a_run_is() -> None:
    assert recorded_run_hosts(RUN) is None
    path = record_dir(RUN) / "run.json"
    path.parent.mkdir(parents=True)
    hosts, spares = [{"name": "head"}], [{"name": "node1"}]  # a spare may have replaced a host
    plan = {"hosts": hosts, "spares": spares, "rank_user": "ftcluster", "prefix": "/opt/ftcluster"}
    record = {"inventories": ["hosts.ini"], "options": ["-u", "me"], "plan": plan}
    path.write_text(json.dumps(record))
    assert recorded_run_hosts(RUN) == RUN_HOSTS
    path.write_text(json.dumps({"run": RUN}))  # written by a version that stored no plan
    assert recorded_run_hosts(RUN) is None


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("train -e a=x -ea=x --extra-vars a=x", "train -e ... -e... --extra-vars ..."),
        ("train --extra-vars=a=x --nodes 1", "train --extra-vars=... --nodes 1"),
        ("train -Ke a=x -ve a=y -Kkea=z", "train -Ke ... -ve ... -Kke..."),
        ("train --extra a=x --ext=a=y mrpc", "train --extra ... --ext=... mrpc"),
        ("train -e@x.yml -e @y.yml -u me", "train -e... -e ... -u me"),
        ("train -i hosts.ini -uex -e a=x", "train -i hosts.ini -uex -e ..."),
        ("run -e a=x -- script.py -e 5", "run -e ... -- script.py -e 5"),
    ],
)
def test_extra_variables_are_not_in_a_record(words: str, shown: str) -> None:
    assert shown_command(words.split()) == ["ftcluster", *shown.split()]
    given, _, _ = words.partition(" -- ")
    # parsed as the command itself parses it
    values = vars(read_arguments(words.split()))["--extra-vars"]
    assert list(extra_variables(given.split())) == values
    assert not [value for value in values if value in " ".join(shown_command(words.split()))]


def test_a_run_that_nobody_followed_gets_its_end_from_the_head() -> None:
    ended = RunState(RUN, "done", "quickstart", ("head",), 1, 20, 20, 100.0, 5.0, "/m")
    complete_from(ended)
    assert not record_dir(RUN).exists()  # the run belongs to another control node
    begin_record(RUN, {})
    complete_from(replace(ended, state="running"))
    complete_from(ended)
    complete_from(replace(ended, state="failed"))  # known values are not overwritten
    end = json.loads((record_dir(RUN) / "run.json").read_text())["end"]
    assert (end["state"], end["ended"], end["model"]) == ("done", 105.0, "/m")
