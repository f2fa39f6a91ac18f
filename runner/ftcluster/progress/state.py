"""The state of a setup and of a run, computed from events. Pure data, no terminal."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ftcluster.ansible.playbook import TaskEvent
from ftcluster.progress.classes import class_documents

MOST_LOSSES = 20_000


@dataclass
class HostProgress:
    """The progress of one host in a playbook.

    Attributes:
        stage: current play.
        activity: current activity of a long task, such as a download; "" if none was reported.
        since: time.monotonic() at the start of the task, or of the task's current activity.
        busy: True while a task runs on the host; False while the host waits for other hosts.
        ok: number of tasks that changed nothing.
        failed: error of the failed task, or "".
        last_failure: error of the last task that failed, even if later tasks succeeded.
        unreachable: True if Ansible could not connect.
        started: time.monotonic() at the first event.
        ended: time.monotonic() at the latest event.
    """

    stage: str = ""
    task: str = ""
    activity: str = ""
    since: float = 0.0
    busy: bool = False
    ok: int = 0
    changed: int = 0
    failed: str = ""
    last_failure: str = ""
    unreachable: bool = False
    started: float = 0.0
    ended: float = 0.0


UNNAMED_STAGES = ("lock", "unlock", "facts again")  # plays that are part of the previous stage


def stage_of(event: TaskEvent) -> str:
    """Return the stage of an event; "" for a play that is not a stage."""
    return "" if event.stage in UNNAMED_STAGES else event.stage


def activity_of(message: str) -> str:
    """Return the activity that a message of a long task names, without its numbers.

    >>> activity_of("downloading wheels: 12 of 450 MB")
    'downloading wheels'
    """
    return message.partition(": ")[0]


@dataclass
class SetupProgress:
    """The progress of a playbook on all hosts, and the messages of its debug tasks."""

    hosts: dict[str, HostProgress] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    finished: bool = False

    def add(self, event: TaskEvent) -> None:
        """Add one event."""
        if not event.host:
            return
        now = time.monotonic()
        host = self.hosts.setdefault(event.host, HostProgress(started=now, since=now))
        if event.kind == "progress":
            if activity_of(event.message) != activity_of(host.activity):
                host.since = now
            host.ended, host.activity, host.busy = now, event.message, True
            return
        if event.kind != "diff":
            host.busy = event.kind == "started"
        if event.task != host.task or event.kind == "started":
            host.since = now
        host.ended, host.task, host.activity = now, event.task, ""
        host.stage = stage_of(event) or host.stage
        match event.kind:
            case "ok":
                host.ok += 1
            case "changed":
                host.changed += 1
            case "failed" | "unreachable":
                host.failed = host.last_failure = event.problem
                host.unreachable = event.kind == "unreachable"
        if event.kind in ("ok", "changed", "skipped"):
            # the failure was rescued; or this task is in an `always` section, see `settle`
            host.failed, host.unreachable = "", False
        if event.kind in ("ok", "changed") and event.message:
            self.notices.append(f"{event.host}: {event.message}")

    def settle(self, failed_hosts: Iterable[str]) -> None:
        """Restore the failures of hosts that failed although a later task succeeded there."""
        for name in failed_hosts:
            host = self.hosts.get(name)
            if host and not host.failed:
                host.failed = host.last_failure


@dataclass
class RunProgress:
    """The progress of a run.

    Attributes:
        state: running, done, failed or stopped.
        data: event `data`: the training data and its target tokens.
        start: event `start`: world_size, backend, precision, steps, epochs, ...
        step: latest event `step`.
        losses: loss of each event `step`; if there are many, of every 2nd, 4th, ... event.
        evaluations: all events `evaluation`.
        result: event `result`: metrics, samples_per_second, model, ...
        errors: all events `error`: message, hint, rank, host.
        notices: messages of all events `notice`, `slow_host` and `restart`.
        time: time of the latest event, in seconds since 1970.
        backend: backend of the process group that a script created; "" for none.
        checkpoint: last event `checkpoint`: step, and its folder on the head.
        seconds: time from the launch to the end of the last rank, in seconds.
        end: event `end`: state, exit_code, seconds.
        restarts: number of restarts of the ranks.
        steps_now: True while the run does training steps; otherwise `doing` names its activity.
    """

    run: str
    state: str = "running"
    doing: str = "starting the ranks"
    data: dict[str, Any] = field(default_factory=dict)
    start: dict[str, Any] = field(default_factory=dict)
    step: dict[str, Any] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)
    errors: list[dict[str, Any]] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    time: float = 0.0
    backend: str = ""
    checkpoint: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    end: dict[str, Any] = field(default_factory=dict)
    restarts: int = 0
    steps_now: bool = False
    _steps: int = 0
    _every: int = 1  # the loss of every n-th event `step` is kept

    @property
    def ended(self) -> bool:
        """True if the run has ended."""
        return bool(self.end)

    @property
    def epoch_seconds(self) -> float | None:
        """The seconds per epoch of a training run that has ended; None if the run did no step."""
        speed = self.result.get("samples_per_second")
        return self.start["train_samples"] / speed if speed and self.start else None

    def document(self) -> dict[str, Any]:
        """Return the facts about the run for `--json`."""
        return {
            "run": self.run,
            "state": self.state,
            "why": self.end.get("why") or None,
            "model": self.result.get("model"),
            "metrics": self.result.get("metrics", {}),
            "classes": class_documents(self.result),
            "samples_per_second": self.result.get("samples_per_second"),
            "world_size": self.start.get("world_size"),
            "seconds": self.seconds,
            "steps": self.step.get("step", 0),
        }

    def add(self, event: dict[str, Any]) -> None:
        """Add an event of events.jsonl; ignore unknown kinds, which later versions may write."""
        self.time = event.get("time", self.time)
        match event.get("event"):
            case "phase":
                self.doing, self.steps_now = event["doing"], False
            case "notice" | "slow_host":
                self.notices.append(event["message"])
            case "backend":
                self.backend = event["name"]
            case "restart":
                self.restarts, self.doing, self.steps_now = (
                    event["restart"],
                    "starting again",
                    False,
                )
                which = f"restart {event['restart']} of {event['max_restarts']}"
                self.notices.append(f"{which}: {event['message']}")
            case "step":
                self.step, self.steps_now = event, True
                if self._steps % self._every == 0:
                    self.losses.append(event["loss"])
                self._steps += 1
                if len(self.losses) > MOST_LOSSES:
                    del self.losses[1::2]
                    self._every *= 2
            case "evaluation":
                self.evaluations.append(event)
            case "error":
                self.errors.append(event)
            case "end":
                self.end = event
                self.state, self.seconds = event["state"], event["seconds"]
            case "data" | "start" | "checkpoint" | "result" as kind:
                setattr(self, kind, event)
