"""A run seen from the control node: launch it, follow it, stop it.

The run itself belongs to the head's supervisor. The control node knows of it what events.jsonl
says, which the playbook copies over while it grows.
"""

import json
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

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

RUN_LIMIT_SECONDS = 30 * 24 * 3600  # a run may last; the playbook only follows it
STOP_LIMIT_SECONDS = 120


class Job(Protocol):
    """What is launched: a training or a script."""

    @property
    def id(self) -> str:
        """The run's name, see `new_run_id`."""

    @property
    def cluster(self) -> Cluster:
        """Where it runs."""

    @property
    def plan(self) -> LaunchPlan:
        """Who runs where."""

    @property
    def launch(self) -> Launch:
        """The command."""

    @property
    def playbook(self) -> str:
        """The collection's playbook that launches and follows it."""

    def variables(self) -> dict[str, Any]:
        """What the playbook needs to know besides what all of them do."""

    def record(self) -> dict[str, Any]:
        """What run.json has of it besides what it has of all."""


class Named(Protocol):
    """A recipe or a script."""

    @property
    def name(self) -> str:
        """What runs are called after."""


@dataclass(frozen=True)
class Followed:
    """A run that has ended, or could not be started.

    Attributes:
        progress: what its events say.
        failures: tasks of the playbook that failed.
        outcome: how the playbook ended; "stopped" means that no rank is left running.
    """

    progress: RunProgress
    failures: list[TaskEvent]
    outcome: Outcome


def new_run_id(named: Named) -> str:
    """An id that says what and when, and tells runs of several control nodes apart.

    For example quickstart-20260131-101500-7f3a.
    """
    while True:
        run = f"{plain_name(named.name)}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        if not (_runs() / run).exists():
            return run


def events_file(run: str) -> Path:
    """The control node's copy of a run's events.jsonl."""
    return _runs() / run / "events.jsonl"


def _runs() -> Path:
    return state_dir() / "runs"


def carry_out(
    job: Job,
    view: View,
    reach: tuple[str, ...],
    on_event: Callable[[dict[str, Any]], None] = lambda _: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Followed:
    """Launch a run and follow it to its end; Ctrl-C ends its ranks on all hosts.

    Args:
        job: what is launched.
        view: where the progress is shown.
        reach: arguments of ansible-playbook that say how to reach the hosts.
        on_event: called for each of the run's events.
        cancelled: asked several times a second; true ends the run as Ctrl-C does.

    Raises:
        FtclusterError: it was to be stopped, and may still be running.
    """
    events = events_file(job.id)
    make_state_dir(events.parent)
    write_atomically(events.with_name("run.json"), _record(job))
    events.touch(mode=PRIVATE_FILE)
    progress = RunProgress(run=job.id)
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
        outcome = run_playbook(
            f"ftcluster.cluster.{job.playbook}",
            job.cluster.inventories,
            _variables(job),
            on_task,
            options=(*_hosts_of(job), *reach),
            on_tick=on_tick,
            cancelled=lambda: interrupts.count > 0 or cancelled(),
            time_limit_seconds=RUN_LIMIT_SECONDS,
        )
        on_tick()
        if outcome.state == "stopped":
            view.say("stopping the ranks ... (once more to leave at once)")
            _stop(job, on_tick, interrupts, reach)
    view.close()
    return Followed(progress, failures, outcome)


def _stop(
    job: Job, on_tick: Callable[[], None], interrupts: Interrupts, reach: tuple[str, ...]
) -> None:
    """End a run on its head.

    Raises:
        FtclusterError: it may still be running; says how to end it.
    """
    already = interrupts.count
    outcome = run_playbook(
        "ftcluster.cluster.stop",
        job.cluster.inventories,
        _variables(job),
        lambda _: None,
        options=(*_hosts_of(job), *reach),
        on_tick=on_tick,
        cancelled=lambda: interrupts.count > already,
        time_limit_seconds=STOP_LIMIT_SECONDS,
    )
    if outcome.state != "done":
        raise FtclusterError(
            f"run {job.id} could not be stopped and may still be running",
            f"on {job.plan.hosts[0].name}: {stack_bin(job.plan)}/python "
            f"-m ftcluster_train.supervisor stop {run_dir(job.plan, job.id)}",
        )


def _hosts_of(job: Job) -> tuple[str, str]:
    return ("--limit", ",".join(host.name for host in job.plan.hosts))


def _variables(job: Job) -> dict[str, Any]:
    """What the playbooks of every launch need, and stop as well."""
    return {
        "train_head": job.plan.hosts[0].name,
        "train_rank_user": job.plan.rank_user,
        "train_run": job.id,
        "train_run_dir": run_dir(job.plan, job.id),
        "train_stack": stack_link(job.plan),
        "train_events": str(events_file(job.id)),
        **job.variables(),
    }


def _record(job: Job) -> str:
    """run.json: everything that was known before the launch."""
    document = {
        "run": job.id,
        "kind": job.playbook,
        "inventories": [str(path) for path in job.cluster.inventories],
        "plan": asdict(job.plan),
        "launch": job.launch.shown(),
        **job.record(),
    }
    return json.dumps(document, indent=1) + "\n"


def failure(job: Job, followed: Followed) -> FtclusterError:
    """Why a run did not end well, in the words of those who know."""
    progress, failures, outcome = followed.progress, followed.failures, followed.outcome
    if progress.errors:
        first = progress.errors[0]
        number = first.get("rank")
        rank = f"rank {number} on {host_of(job.plan, number)}: " if number is not None else ""
        more = [f"  also: {error['message']}" for error in progress.errors[1:]]
        message = "\n".join([f"run {job.id} failed: {rank}{first['message']}", *more])
        return FtclusterError(message, str(first.get("hint", "")))
    if failures:
        words = [f"{event.host}: {event.task}: {event.message}" for event in failures]
        off = any(event.kind == "unreachable" for event in failures)
        hint = "see that it is on and that ssh reaches it; ftcluster check looks at all of them"
        return FtclusterError(f"run {job.id} failed\n  " + "\n  ".join(words), hint if off else "")
    if outcome.state == "timeout":
        return FtclusterError(f"run {job.id} was given up after {RUN_LIMIT_SECONDS} s")
    return FtclusterError(f"run {job.id} failed: ansible said\n{outcome.output}")


def host_of(plan: LaunchPlan, rank: int) -> str:
    """The inventory's name of the host that a rank runs on; ranks follow the hosts' order."""
    names = [host.name for host in plan.hosts for _ in range(host.ranks)]
    return names[rank] if 0 <= rank < len(names) else "a host that is not known"


class _EventReader:
    """Hands out each object of a growing JSONL file once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new_events(self) -> list[dict[str, Any]]:
        """Objects of the lines that were finished since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [read_event_line(line) for line in whole.splitlines()]
