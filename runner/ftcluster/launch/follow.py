"""Launches a run, follows it to its end, and stops it.

The head's supervisor runs it. The control node only has its events.jsonl, which the playbook copies
while it grows.
"""

import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from ftcluster.ansible.playbook import Outcome, TaskEvent, run_playbook
from ftcluster.ansible.signals import Interrupts
from ftcluster.cluster.saved import Cluster
from ftcluster.errors import FtclusterError
from ftcluster.launch.events import read_event_line
from ftcluster.launch.mpirun import run_dir, stack_bin, stack_link
from ftcluster.paths import PRIVATE_FILE, make_state_dir, plain_name, state_dir, write_atomically
from ftcluster.planning.plan import LaunchPlan
from ftcluster.progress.state import RunProgress
from ftcluster.progress.view import View
from ftcluster_common.launch import Launch

RUN_LIMIT_SECONDS = 30 * 24 * 3600  # a run may take long; the playbook only follows it
STOP_LIMIT_SECONDS = 120


@dataclass(frozen=True)
class Run(ABC):
    """A run of a training or a script.

    Attributes:
        id: its name, see `new_run_id`.
        cluster: where it runs.
        plan: who runs where.
        launch: the command.
        playbook: the collection's playbook that launches and follows it.
    """

    id: str
    cluster: Cluster
    plan: LaunchPlan
    launch: Launch

    playbook: ClassVar[str]

    @property
    @abstractmethod
    def job(self) -> dict[str, Any]:
        """The content of job.json on the hosts."""

    @abstractmethod
    def variables(self) -> dict[str, Any]:
        """The playbook's variables, besides those of all runs."""

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """What run.json has besides what it has of all runs."""


@dataclass(frozen=True)
class Followed:
    """A run that has ended, or could not be started.

    Attributes:
        progress: from its events.
        failures: tasks of the playbook that failed.
        outcome: how the playbook ended; "stopped" means that no rank is left running.
    """

    progress: RunProgress
    failures: list[TaskEvent]
    outcome: Outcome


def new_run_id(name: str) -> str:
    """An id with name, time and a random part, because a cluster may have several control nodes.

    For example quickstart-20260131-101500-7f3a.
    """
    while True:
        run = f"{plain_name(name)}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        if not events_file(run).parent.exists():
            return run


def events_file(run: str) -> Path:
    """The control node's copy of a run's events.jsonl."""
    return state_dir() / "runs" / run / "events.jsonl"


def carry_out(
    run: Run,
    view: View,
    reach: tuple[str, ...],
    on_event: Callable[[dict[str, Any]], None] = lambda _: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Followed:
    """Launch a run and follow it to its end; Ctrl-C ends its ranks on all hosts.

    Args:
        run: what is launched.
        view: where the progress is shown.
        reach: arguments of ansible-playbook that say how to reach the hosts.
        on_event: called for each of the run's events.
        cancelled: called several times a second; true ends the run as Ctrl-C does.

    Raises:
        FtclusterError: it was to be stopped, and may still be running.
    """
    events = events_file(run.id)
    make_state_dir(events.parent)
    write_atomically(events.with_name("run.json"), _record(run))
    events.touch(mode=PRIVATE_FILE)
    progress = RunProgress(run=run.id)
    reader = _EventReader(events)
    failures: list[TaskEvent] = []

    def on_task(event: TaskEvent) -> None:
        if event.kind in ("failed", "unreachable"):
            failures.append(event)
        following = event.action == "ftcluster.cluster.follow"  # the run's own events say more
        if event.kind == "task" and not progress.start and not following:
            take({"event": "phase", "doing": event.task[:1].lower() + event.task[1:]})

    def take(event: dict[str, Any]) -> None:
        progress.add(event)
        view.run_event(progress, event["event"])
        on_event(event)

    def on_tick() -> None:
        for event in reader.new_events():
            take(event)
        view.tick()

    with Interrupts() as interrupts:
        outcome = _run_playbook(
            run.playbook,
            run,
            reach,
            on_task,
            on_tick,
            lambda: interrupts.count > 0 or cancelled(),
            RUN_LIMIT_SECONDS,
        )
        on_tick()
        if outcome.state == "stopped":
            view.say("stopping the ranks ... (press Ctrl-C again to leave at once)")
            _stop(run, on_tick, interrupts, reach)
    view.close()
    return Followed(progress, failures, outcome)


def _stop(
    run: Run, on_tick: Callable[[], None], interrupts: Interrupts, reach: tuple[str, ...]
) -> None:
    """End a run on its head.

    Raises:
        FtclusterError: it may still be running; says how to end it.
    """
    before = interrupts.count
    again = lambda: interrupts.count > before  # noqa: E731
    outcome = _run_playbook("stop", run, reach, lambda _: None, on_tick, again, STOP_LIMIT_SECONDS)
    if outcome.state != "done":
        raise FtclusterError(
            f"run {run.id} could not be stopped and may still be running",
            f"on {run.plan.hosts[0].name}: {stack_bin(run.plan)}/python "
            f"-m ftcluster_train.supervisor stop {run_dir(run.plan, run.id)}",
        )


def _run_playbook(
    playbook: str,
    run: Run,
    reach: tuple[str, ...],
    on_event: Callable[[TaskEvent], None],
    on_tick: Callable[[], None],
    cancelled: Callable[[], bool],
    limit_seconds: float,
) -> Outcome:
    hosts = run.plan.hosts
    return run_playbook(
        f"ftcluster.cluster.{playbook}",
        run.cluster.inventories,
        {
            "train_head": hosts[0].name,
            "train_rank_user": run.plan.rank_user,
            "train_run": run.id,
            "train_run_dir": run_dir(run.plan, run.id),
            "train_stack": stack_link(run.plan),
            "train_events": str(events_file(run.id)),
            "train_launch": run.launch.to_dict(),
            "train_job": run.job,
            **run.variables(),
        },
        on_event,
        options=("--limit", ",".join(host.name for host in hosts), *reach),
        on_tick=on_tick,
        cancelled=cancelled,
        time_limit_seconds=limit_seconds,
    )


def _record(run: Run) -> str:
    """run.json: everything that was known before the launch."""
    document = {
        "run": run.id,
        "kind": run.playbook,
        "inventories": [str(path) for path in run.cluster.inventories],
        "plan": asdict(run.plan),
        "launch": run.launch.shown(),
        **run.record(),
    }
    return json.dumps(document, indent=1) + "\n"


def failure(run: Run, followed: Followed) -> FtclusterError:
    """Why a run failed: the ranks' errors, else those of the playbook's tasks, else Ansible's."""
    progress, failures, outcome = followed.progress, followed.failures, followed.outcome
    failed = f"run {run.id} failed"
    if progress.errors:
        first, *others = progress.errors
        number = first["rank"]
        rank = f"rank {number} on {host_of(run.plan, number)}: " if number is not None else ""
        more = [f"  also: {error['message']}" for error in others]
        message = "\n".join([f"{failed}: {rank}{first['message']}", *more])
        return FtclusterError(message, first["hint"])
    if failures:
        reasons = [f"{event.host}: {event.task}: {event.message}" for event in failures]
        off = any(event.kind == "unreachable" for event in failures)
        hint = "check that it is on and that ssh connects to it: ftcluster check"
        return FtclusterError(f"{failed}\n  " + "\n  ".join(reasons), hint if off else "")
    if outcome.state == "timeout":
        return FtclusterError(f"run {run.id} took longer than {RUN_LIMIT_SECONDS} s")
    return FtclusterError(f"{failed}; output of ansible:\n{outcome.output}")


def host_of(plan: LaunchPlan, rank: int) -> str:
    """The inventory's name of a rank's host; ranks are numbered in the order of hosts."""
    names = [host.name for host in plan.hosts for _ in range(host.ranks)]
    return names[rank] if 0 <= rank < len(names) else "an unknown host"


class _EventReader:
    """Returns each object of a growing JSONL file once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new_events(self) -> list[dict[str, Any]]:
        """Objects of the lines that were completed since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [read_event_line(line) for line in whole.splitlines()]
