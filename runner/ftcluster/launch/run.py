"""The common parts of training runs and scripts: launch, outcome and reasons for a failure."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from ftcluster.ansible.failures import failed_without_task
from ftcluster.ansible.playbook import PlaybookOutcome
from ftcluster.ansible.playbooks import Launched, Playbook, RunEvents
from ftcluster.cluster.saved import Cluster
from ftcluster.errors import FtclusterError, Interrupted, StoppedElsewhere
from ftcluster.launch.kept_options import DEFAULTS, KeptOptions
from ftcluster.launch.run_hosts import failure_hint, off_hint
from ftcluster.progress.format import stopped_line
from ftcluster.progress.state import RunProgress
from ftcluster.progress.view import below
from ftcluster.text.host_names import with_host
from ftcluster.text.plural import counted
from ftcluster_common.protocol.launch import Launch

if TYPE_CHECKING:  # following a run needs no plan
    from ftcluster.planning.plan import LaunchPlan

RUN_LIMIT_SECONDS = 30 * 24 * 3600  # time limit of the playbook that follows a run


@dataclass(frozen=True)
class ClusterRun(ABC):
    """A run on the hosts of a cluster, either training or a user's script.

    Attributes:
        id: id of the run, see `new_run_id`.
        cluster: the cluster that the run was planned for.
        plan: the plan of the run.
        launch: the launch of the run.
        kind: "train" or "run".
        command: command line that started the run, for its record.
        secrets: values of the user's secret variables by name, which no record contains.
        kept: options of the launch that a resumed run uses again.
        webhook: address that the head notifies, which no record contains; "" for none.
    """

    id: str
    cluster: Cluster
    plan: "LaunchPlan"
    launch: Launch
    command: tuple[str, ...] = field(default=(), kw_only=True)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False, kw_only=True)
    kept: KeptOptions = field(default=DEFAULTS, kw_only=True)
    webhook: str = field(default="", repr=False, kw_only=True)

    kind: ClassVar[str]

    @property
    @abstractmethod
    def job(self) -> dict[str, Any]:
        """The content of job.json on the hosts."""

    @abstractmethod
    def playbook(self, events: RunEvents, launch: Launched) -> Playbook:
        """Return the playbook that launches and follows the run."""

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """The additional fields of run.json for this kind of run."""


@dataclass(frozen=True)
class Followed:
    """The result of following a run.

    Attributes:
        progress: the state that the run's events describe.
        outcome: outcome of the playbook. "stopped" means that no rank is running any more, unless
            the run is detached.
        detached: True if the run continues without this command.
        head_lost: True if the head did not respond within the time limit.
        changed: the head's description of the cluster if the cluster has changed since the plan was
            made; the run was then not started.
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
    """Return the error for a failed run.

    The reason comes from the ranks' errors. If there are none, it comes from the playbook's failed
    tasks, or else from Ansible's output.
    """
    progress, outcome = followed.progress, followed.outcome
    failed = f"run {run.id} failed"
    if progress.errors:
        first = progress.errors[0]
        number, host = first["rank"], first["host"]
        if number is not None and host not in {prepared.name for prepared in run.plan.prepared}:
            host = host_of(run.plan, number)  # the error itself contains only the hostname
        return FtclusterError(*why_failed(progress, host))
    if outcome.failures:
        reasons = [with_host(event.host, event.problem) for event in outcome.failures]
        off = [event.host for event in outcome.failures if event.kind == "unreachable"]
        hint = off_hint(off, run.plan.hosts[0].name)
        hint = hint or failure_hint(outcome.failures)
        return FtclusterError(f"{failed}\n  " + "\n  ".join(reasons), hint)
    if outcome.state == "timeout":
        return FtclusterError(f"run {run.id} exceeded the time limit of {RUN_LIMIT_SECONDS} s")
    return failed_without_task(f"run {run.id}", outcome.output)


def why_failed(progress: RunProgress, host: str = "") -> tuple[str, str]:
    """Return the reason why a run failed, from its errors, and a hint for the user.

    Args:
        host: inventory name of the host of the first error; "" to use the hostname in the error.
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
    """Return the inventory name of a rank's host. Ranks are numbered in the order of hosts."""
    names = [host.name for host in plan.hosts for _ in range(host.ranks)]
    return names[rank] if 0 <= rank < len(names) else "an unknown host"
