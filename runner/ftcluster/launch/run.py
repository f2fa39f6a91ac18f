"""A run: what is launched, how it ended, and why it failed."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from ftcluster.ansible.playbook import PlaybookOutcome
from ftcluster.ansible.playbooks import Launched, Playbook, RunEvents
from ftcluster.cluster.saved import Cluster
from ftcluster.errors import FtclusterError, Interrupted, StoppedElsewhere
from ftcluster.launch.run_hosts import off_hint, sudo_hint
from ftcluster.progress.format import stopped_line
from ftcluster.progress.state import RunProgress
from ftcluster.progress.view import below
from ftcluster.text.plural import counted
from ftcluster_common.protocol.launch import Launch

if TYPE_CHECKING:  # what follows a run needs no plan of one
    from ftcluster.planning.plan import LaunchPlan

RUN_LIMIT_SECONDS = 30 * 24 * 3600  # a run may take long; the playbook only follows it


@dataclass(frozen=True)
class ClusterRun(ABC):
    """A training or a user's script that runs on the hosts of a cluster.

    Attributes:
        id: its name, see `new_run_id`.
        kind: "train" or "run".
        command: what asks for it, for its record.
        secrets: the user's variables for the ranks that no record has.
    """

    id: str
    cluster: Cluster
    plan: "LaunchPlan"
    launch: Launch
    command: tuple[str, ...] = field(default=(), kw_only=True)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False, kw_only=True)

    kind: ClassVar[str]

    @property
    @abstractmethod
    def job(self) -> dict[str, Any]:
        """The content of job.json on the hosts."""

    @abstractmethod
    def playbook(self, events: RunEvents, launch: Launched) -> Playbook:
        """What launches and follows it."""

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """What run.json has besides what it has of all runs."""


@dataclass(frozen=True)
class Followed:
    """A run that has ended, or could not be started.

    Attributes:
        progress: from its events.
        outcome: how the playbook ended; "stopped" means that no rank is left running, unless it is
            detached.
        detached: whether the run continues without this command.
        head_lost: whether the head has not answered for too long.
        changed: what the head said of the cluster where it is not what the plan was made of.
    """

    progress: RunProgress
    outcome: PlaybookOutcome
    detached: bool = False
    head_lost: bool = False
    changed: Mapping[str, Any] | None = None


def raise_if_stopped(followed: Followed, details: dict[str, Any]) -> None:
    """Raise an error with these details if the user stopped the run, here or elsewhere."""
    if followed.outcome.state == "stopped":
        raise Interrupted(stopped_line(followed.progress), details=details)
    if followed.progress.state == "stopped":
        raise StoppedElsewhere(stopped_line(followed.progress), details=details)


def failure(run: ClusterRun, followed: Followed) -> FtclusterError:
    """Why a run failed: the ranks' errors, else those of the playbook's tasks, else Ansible's."""
    progress, outcome = followed.progress, followed.outcome
    failed = f"run {run.id} failed"
    if progress.errors:
        first = progress.errors[0]
        number, host = first["rank"], first["host"]
        if number is not None and host not in {one.name for one in run.plan.prepared}:
            host = host_of(run.plan, number)  # the error has the hostname
        return FtclusterError(*why_failed(progress, host))
    if outcome.failures:
        reasons = [f"{event.host}: {event.problem}" for event in outcome.failures]
        off = [event.host for event in outcome.failures if event.kind == "unreachable"]
        hint = off_hint(off, run.plan.hosts[0].name)
        hint = hint or sudo_hint(event.message for event in outcome.failures)
        return FtclusterError(f"{failed}\n  " + "\n  ".join(reasons), hint)
    if outcome.state == "timeout":
        return FtclusterError(f"run {run.id} took longer than {RUN_LIMIT_SECONDS} s")
    return FtclusterError(f"{failed}; output of ansible:\n{outcome.output}")


def why_failed(progress: RunProgress, host: str = "") -> tuple[str, str]:
    """Why a run failed, by its errors, and what to do.

    Args:
        host: the inventory's name of the first error's host; "": as the error has it.
    """
    first, *others = progress.errors
    number = first["rank"]
    rank = f"rank {number} on {host or first['host']}: " if number is not None else ""
    after = f" after {counted(progress.restarts, 'restart')}" if progress.restarts else ""
    lines = [
        f"run {progress.run} failed{after}: {rank}{below(first['message'])}",
        *(f"  also: {below(error['message'])}" for error in others),
    ]
    resume = f"continue it: ftcluster train --resume {progress.run}" if progress.checkpoint else ""
    return "\n".join(lines), "; ".join(filter(None, (below(first["hint"]), resume)))


def host_of(plan: "LaunchPlan", rank: int) -> str:
    """The inventory's name of a rank's host; ranks are numbered in the order of hosts."""
    names = [host.name for host in plan.hosts for _ in range(host.ranks)]
    return names[rank] if 0 <= rank < len(names) else "an unknown host"
