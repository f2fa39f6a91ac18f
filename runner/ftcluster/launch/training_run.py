"""Launch and follow a training run, and return its result."""

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ftcluster.ansible.playbooks import Launched, RunEvents, Train
from ftcluster.cluster.price import price_of
from ftcluster.errors import FtclusterError
from ftcluster.launch.follow import RECONNECT_LIMIT_SECONDS, launch_and_follow
from ftcluster.launch.run import ClusterRun, failure, raise_if_stopped
from ftcluster.progress.state import RunProgress
from ftcluster.progress.view import View
from ftcluster.text.host_names import described
from ftcluster_common.data.column_uses import Columns
from ftcluster_common.protocol.job import Job, Purpose
from ftcluster_common.recipe import Recipe
from ftcluster_common.user_code import NO_CODE, UserCode

LOG_SAMPLES_VARIABLE = "FTCLUSTER_LOG_SAMPLES"  # see bench/notes/reliability.md


@dataclass(frozen=True)
class TrainingRun(ClusterRun):
    """A run that trains or evaluates a model, or uses it to predict or to generate text.

    Attributes:
        recipe: the recipe of the run.
        folders: local files and folders to copy, and their paths on the hosts.
        columns: columns of each data set by their use; empty for a data set that only hosts read.
        notes: facts that the user should know before the run begins.
        purpose: purpose of the run: train, evaluate, predict or generate; see Job.
        resume: ids of the runs that this run continues, the newest first.
        must_resume: True to raise an error if none of these runs has saved a state.
        generation: prompts and sampling settings of a generation, see Job.
        prompts: path of a local file with further prompts, which grows during the run; "" for none.
        hub_token: token that the hosts use to download model and data; "" for none.
        code: the user's Python files that the hosts execute.
    """

    recipe: Recipe
    folders: tuple[tuple[str, str], ...] = ()
    columns: tuple[Columns, ...] = ()
    notes: tuple[str, ...] = ()
    purpose: Purpose = "train"
    resume: tuple[str, ...] = ()
    must_resume: bool = True
    generation: Mapping[str, Any] = field(default_factory=dict)
    prompts: str = ""
    hub_token: str = field(default="", repr=False)
    code: UserCode = NO_CODE

    kind: ClassVar[str] = "train"

    @property
    def job(self) -> dict[str, Any]:
        plan, prefix = self.plan, Path(self.plan.prefix)
        folder = Path(self.launch.run_dir)
        price, _ = price_of(self.prices)
        job = Job(
            self.id, folder, prefix, self.recipe, plan.precision, plan.ipex, self.resume,
            self.must_resume, log_samples=bool(os.environ.get(LOG_SAMPLES_VARIABLE)),
            nodes=len(plan.hosts), shard_optimizer=plan.shard_optimizer, purpose=self.purpose,
            shared_folder=bool(self.cluster.slurm_job), hardware=self._hardware,
            price_per_hour=price.per_hour if price else None,
            currency=price.currency if price else "", generation=self.generation,
            code=self.code,
        )  # fmt: skip
        return job.to_dict()

    @property
    def prices(self) -> list[tuple[str, str]]:
        """The names and prices of the hosts that the run is prepared on."""
        names = {host.name for host in self.plan.prepared}
        hosts = self.cluster.facts.hosts
        return [(host.name, host.price_per_hour) for host in hosts if host.name in names]

    @property
    def _hardware(self) -> tuple[str, ...]:
        names = {host.name for host in self.plan.hosts}
        hosts = [host for host in self.cluster.facts.hosts if host.name in names]
        named = [", ".join(sorted(names))] if self.recipe.card_host_names else []
        return (*described([(host.cpu_model, host.cores) for host in hosts]), *named)

    def playbook(self, events: RunEvents, launch: Launched) -> Train:
        folders = [{"source": source, "path": path} for source, path in self.folders]
        options = self.kept.document() if self.purpose == "train" else {}
        return Train(events, launch, folders, self.hub_token, self.prompts, options)

    def record(self) -> dict[str, Any]:
        files = [{"name": file.name, "sha256": file.sha256} for file in self.code.files]
        return {"recipe": asdict(self.recipe), **({"code": files} if files else {})}


class HeadLost(FtclusterError):
    """The error raised if the head of a training run does not respond within the time limit."""


def train(
    run: TrainingRun,
    view: View,
    connection_options: tuple[str, ...] = (),
    detach: bool = False,
    head_seconds: float = RECONNECT_LIMIT_SECONDS,
    on_event: Callable[[dict[str, Any]], None] = lambda _: None,
    may_detach: bool = True,
) -> RunProgress:
    """Launch a training run and follow it to its end.

    If this command detaches from the run, the result has the state "running".

    Args:
        connection_options: arguments of ansible-playbook for reaching the hosts.
        detach: True to return once the run is launched.
        head_seconds: time in seconds to wait for a head that does not respond.
        on_event: function that is called with each event of the run.
        may_detach: True if Ctrl-C asks the user and other signals detach; False if all signals stop
            the run.

    Raises:
        Detached: a signal has ended this command only; the training continues.
        HeadLost: the head did not respond within `head_seconds`.
        FtclusterError: the training failed; the error has messages of ranks or hosts.
        Interrupted: the training was stopped, here or elsewhere; no rank is running any more.
    """
    followed = launch_and_follow(
        run, view, connection_options, on_event=on_event, detach=detach, head_seconds=head_seconds,
        may_detach=may_detach,
    )  # fmt: skip
    progress = followed.progress
    if followed.detached:
        return progress
    if followed.head_lost:
        raise HeadLost(
            f"{run.plan.hosts[0].name}, the head of run {run.id}, does not answer",
            f"continue it on the other hosts: ftcluster train --resume {run.id}",
            details=_details(run, progress),
        )
    raise_if_stopped(followed, _details(run, progress))
    if progress.state != "done":
        error = failure(run, followed)
        error.details = _details(run, progress)
        raise error
    needed = {"start": progress.start or run.purpose != "train", "result": progress.result}
    if missing := [name for name, event in needed.items() if not event]:
        raise FtclusterError(
            f"run {run.id} is done, but its events contain no {' and no '.join(missing)}",
            f"check the installation on its head, and see ftcluster logs {run.id}",
            details=_details(run, progress),
        )
    return progress


def _details(run: TrainingRun, progress: RunProgress) -> dict[str, Any]:
    """Return details of a run that failed or was stopped, for the error."""
    evaluations = progress.evaluations
    return {
        **progress.document(),
        "model": None,
        "metrics": evaluations[-1]["metrics"] if evaluations else {},
        "samples_per_second": progress.step.get("samples_per_second"),
        "world_size": run.plan.world_size,
    }
