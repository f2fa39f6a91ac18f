"""The life of a run, seen from the control node: launch it, follow it, stop it.

The training itself belongs to the head's supervisor. The control node knows of it what
events.jsonl says, which the playbook copies over while it grows.
"""

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ftcluster.cluster import Cluster
from ftcluster.errors import FtclusterError, Interrupted
from ftcluster.interrupts import Interrupts
from ftcluster.paths import state_dir, write_atomically
from ftcluster.plan import LaunchPlan
from ftcluster.playbooks import Outcome, TaskEvent, run_playbook
from ftcluster.progress.state import RunProgress
from ftcluster.progress.view import View
from ftcluster.recipe import Recipe
from ftcluster.render import Launch, run_dir, stack_bin

RUN_LIMIT_SECONDS = 30 * 24 * 3600  # a training may last; the playbook only follows it
STOP_LIMIT_SECONDS = 120


@dataclass(frozen=True)
class Run:
    """One run as it is launched.

    Attributes:
        id: its name, unique on this control node.
        cluster: where it runs.
        recipe: what it trains.
        plan: who runs where.
        launch: the command.
        folders: folders of this machine and where they are copied to on the hosts.
    """

    id: str
    cluster: Cluster
    recipe: Recipe
    plan: LaunchPlan
    launch: Launch
    folders: tuple[tuple[str, str], ...] = ()

    @property
    def events(self) -> Path:
        """The control node's copy of events.jsonl."""
        return _runs() / self.id / "events.jsonl"


def new_run_id(recipe: Recipe) -> str:
    """An id that says what and when, new on this control node: quickstart-20260131-101500."""
    stem = f"{recipe.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    names = (stem, *(f"{stem}-{number}" for number in range(2, 1000)))
    return next(name for name in names if not (_runs() / name).exists())


def _runs() -> Path:
    return state_dir() / "runs"


def train(run: Run, view: View, reach: tuple[str, ...] = ()) -> RunProgress:
    """Launch a run and follow it to its end.

    Args:
        run: what is launched.
        view: where the progress is shown.
        reach: arguments of ansible-playbook that say how to reach the hosts.

    Raises:
        FtclusterError: it failed; says what the ranks or hosts said.
        Interrupted: the user stopped it; nothing of it is left running.
    """
    write_atomically(run.events.with_name("run.json"), _record(run))
    run.events.touch()
    progress = RunProgress(run=run.id)
    reader = _EventReader(run.events)
    failures: list[TaskEvent] = []

    def on_event(event: TaskEvent) -> None:
        if event.kind in ("failed", "unreachable"):
            failures.append(event)
        if event.kind == "task" and not progress.start:
            doing = event.task[:1].lower() + event.task[1:]
            take({"event": "phase", "doing": doing} if doing != "follow the run" else {})

    def take(event: dict[str, Any]) -> None:
        if event:
            progress.add(event)
            view.run_event(progress, event["event"])

    def on_tick() -> None:
        for event in reader.new_events():
            take(event)
        view.tick()

    with Interrupts() as interrupts:
        outcome = run_playbook(
            "ftcluster.cluster.train",
            run.cluster.inventory,
            _variables(run),
            on_event,
            options=(*_hosts_of(run), *reach),
            on_tick=on_tick,
            cancelled=lambda: interrupts.count > 0,
            time_limit_seconds=RUN_LIMIT_SECONDS,
        )
        on_tick()
        if outcome.state == "stopped":
            view.say("stopping the ranks ... (once more to leave at once)")
            _stop(run, on_tick, interrupts, reach)
            view.close()
            raise Interrupted(
                f"stopped: run {run.id} at step {progress.step.get('step', 0)}; "
                "no rank is left running, no model was saved",
                details=_known(run, progress),
            )
    view.close()
    if progress.state != "done":
        error = _failure(run, progress, failures, outcome)
        error.details = _known(run, progress)
        raise error
    return progress


def _stop(run: Run, on_tick: Any, interrupts: Interrupts, reach: tuple[str, ...]) -> None:
    """End a run on its head.

    Raises:
        FtclusterError: it may still be running; says how to end it.
    """
    already = interrupts.count
    outcome = run_playbook(
        "ftcluster.cluster.stop",
        run.cluster.inventory,
        _variables(run),
        lambda _: None,
        options=(*_hosts_of(run), *reach),
        on_tick=on_tick,
        cancelled=lambda: interrupts.count > already,
        time_limit_seconds=STOP_LIMIT_SECONDS,
    )
    if outcome.state != "done":
        raise FtclusterError(
            f"run {run.id} could not be stopped and may still be running",
            f"on {run.plan.hosts[0].name}: {stack_bin(run.plan)}/python "
            f"-m ftcluster_train.supervisor stop {run_dir(run.plan, run.id)}",
        )


def _hosts_of(run: Run) -> tuple[str, str]:
    return ("--limit", ",".join(host.name for host in run.plan.hosts))


def _variables(run: Run) -> dict[str, Any]:
    """What the playbooks train and stop need to know."""
    return {
        "train_head": run.plan.hosts[0].name,
        "train_rank_user": run.plan.rank_user,
        "train_run": run.id,
        "train_folders": [{"source": source, "path": path} for source, path in run.folders],
        "train_run_dir": run_dir(run.plan, run.id),
        "train_stack": f"{run.plan.prefix}/current",
        "train_events": str(run.events),
        "train_launch": run.launch.to_dict(),
        "train_job": {
            "run": run.id,
            "prefix": run.plan.prefix,
            "precision": run.plan.precision,
            "ipex": run.plan.ipex,
            "recipe": asdict(run.recipe),
        },
    }


def _record(run: Run) -> str:
    """run.json: everything that was known before the launch."""
    document = {
        "run": run.id,
        "inventory": str(run.cluster.inventory),
        "recipe": asdict(run.recipe),
        "plan": asdict(run.plan),
        "launch": run.launch.to_dict(),
    }
    return json.dumps(document, indent=1) + "\n"


def _known(run: Run, progress: RunProgress) -> dict[str, Any]:
    """What is known of a run that did not end well."""
    evaluations = progress.evaluations
    return {
        "run": run.id,
        "model": None,
        "metrics": evaluations[-1]["metrics"] if evaluations else {},
        "samples_per_second": progress.step.get("samples_per_second"),
        "world_size": run.plan.world_size,
        "seconds": progress.seconds,
        "steps": progress.step.get("step", 0),
    }


def _failure(
    run: Run, progress: RunProgress, failures: list[TaskEvent], outcome: Outcome
) -> FtclusterError:
    """Why a run did not end well, in the words of those who know."""
    if progress.errors:
        first = progress.errors[0]
        rank = f"rank {first['rank']} on {first['host']}: " if first.get("rank") is not None else ""
        more = [f"  also: {error['message']}" for error in progress.errors[1:]]
        message = "\n".join([f"run {run.id} failed: {rank}{first['message']}", *more])
        return FtclusterError(message, str(first.get("hint", "")))
    if failures:
        words = [f"{event.host}: {event.task}: {event.message}" for event in failures]
        return FtclusterError(f"run {run.id} failed\n  " + "\n  ".join(words))
    if outcome.state == "timeout":
        return FtclusterError(f"run {run.id} was given up after {RUN_LIMIT_SECONDS} s")
    return FtclusterError(f"run {run.id} failed: ansible said\n{outcome.output}")


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
        return [json.loads(line) for line in whole.splitlines()]
