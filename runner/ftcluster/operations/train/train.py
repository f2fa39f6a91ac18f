"""Train a model on a cluster, or in a Slurm job."""

import contextlib
from dataclasses import dataclass, field, replace
from typing import Any

from ftcluster.cluster.price import epoch_document, price_document, price_of
from ftcluster.cluster.saved import Cluster
from ftcluster.cluster.slurm import Allocation, cluster_of_job
from ftcluster.errors import UsageError
from ftcluster.launch import training_run
from ftcluster.launch.follow import RECONNECT_LIMIT_SECONDS, attach
from ftcluster.launch.hub_token import find_token
from ftcluster.launch.kept_options import TRAINING_RESTARTS
from ftcluster.launch.record import recorded_env
from ftcluster.launch.run_hosts import run_hosts_of
from ftcluster.launch.runs import find_job, find_run
from ftcluster.launch.training_run import HeadLost, TrainingRun
from ftcluster.operations.connection import cluster_of
from ftcluster.operations.train.head_access import ensure_head_access
from ftcluster.operations.train.plan_result import PlanResult
from ftcluster.operations.train.prepare import (
    LaunchOptions,
    RecipeRequest,
    headline_of,
    say_notes,
)
from ftcluster.operations.train.resume import HostCounts, resumed_run, with_kept_options
from ftcluster.operations.train.slurm_job import earlier_run, requeued
from ftcluster.progress.classes import class_lines
from ftcluster.progress.format import duration, metrics
from ftcluster.progress.state import RunProgress
from ftcluster.progress.texts import text_lines, written_texts
from ftcluster.progress.view import View
from ftcluster.report.cost import cost_line
from ftcluster.text.plural import counted

HEAD_SECONDS = 120.0  # time to wait for a head that does not respond; it may be rebooting


@dataclass(frozen=True)
class TrainRequest(RecipeRequest):
    """A training run to start or to resume, and its options.

    Attributes:
        resume: id of a run to continue, or the beginning of the id; "" for a new training. The run
            continues from its newest checkpoint or snapshot, with the same recipe, model and data.
        watch: True if the training moves to the other hosts when its head does not respond for 2
            minutes.
        detach: True if the command returns once the run is launched.
        hub_token: True if the hosts may use the user's token for the Hugging Face Hub.
        job: Slurm job whose nodes are the hosts; None for the cluster's hosts.
        requeue: True if Slurm starts the job again when a signal stops the training.
    """

    resume: str = ""
    watch: bool = False
    detach: bool = False
    hub_token: bool = False
    launch: LaunchOptions = field(default_factory=LaunchOptions)
    job: Allocation | None = None
    requeue: bool = False

    def __post_init__(self) -> None:
        """Check that --resume is not combined with a recipe, model or data.

        Raises:
            UsageError: --resume is combined with a recipe, model or data.
        """
        super().__post_init__()
        if self.resume and (self.words or self.data or self.model):
            raise UsageError(
                "--resume continues with the run's own recipe, model and data, so none of them can "
                "be changed",
                "start a new run instead, from a checkpoint (training.resume_from_checkpoint=DIR) "
                "or from a model's weights (--model DIR)",
            )


@dataclass(frozen=True)
class TrainResult:
    """The result of a training run that has ended, or of a detached run that continues.

    Attributes:
        run: the launched run.
        progress: the state that the run's events describe.
    """

    run: TrainingRun
    progress: RunProgress

    def document(self) -> dict[str, Any]:
        """Return the document that `train --json` prints."""
        progress, start = self.progress, self.progress.start
        if progress.state == "running":
            return {"run": progress.run, "state": progress.state}
        price, _ = price_of(self.run.prices)
        return {
            **progress.document(),
            "price": price_document(price),
            "cost": round(price.cost(progress.seconds), 6) if price else None,
            "epoch": epoch_document(progress.epoch_seconds, price),
            "train_seconds": progress.result["train_seconds"],
            "steps": progress.step.get("step", start["steps"]),
            "seed": self.run.recipe.training.seed,
            "precision": start["precision"],
            "ipex": start["ipex"],
        }

    def lines(self) -> list[str]:
        """Return metrics, speed, cost and the model's path; for a detached run, its id."""
        progress, result, run = self.progress, self.progress.result, self.run
        if progress.state == "running":
            return [progress.run]
        head = run.cluster.facts.head
        where = "" if head.connection == "local" else f"{head.name}:"
        price, why = price_of(run.prices)
        cost = [f"cost: not available ({why})"] if why else []
        if price:
            hosts = len(run.plan.prepared)
            cost = [cost_line(progress.seconds, progress.epoch_seconds, price, hosts)]
        return [
            *class_lines(result),
            *text_lines(written_texts(result, progress.evaluations)),
            metrics(result["metrics"]),
            speed(progress, run),
            *cost,
            f"model: {where}{result['model']}",
        ]


def speed(progress: RunProgress, run: TrainingRun) -> str:
    """Return the speed of a run as one line."""
    result, count = progress.result, len(run.plan.hosts)
    hosts = f" on {count} hosts" if count > 1 else ""
    return (
        f"{result['samples_per_second']:.1f} samples per second on "
        f"{counted(result['world_size'], 'rank')}{hosts}, {duration(progress.seconds)} in all"
    )


@dataclass(frozen=True)
class _Attempt:
    """A training run before its launch.

    Attributes:
        must_resume: True to raise an error if the continued run has saved no state.
    """

    request: TrainRequest
    cluster: Cluster
    run: TrainingRun
    must_resume: bool

    @property
    def connection_options(self) -> tuple[str, ...]:
        return self.request.connection.to(self.cluster)


def dry_run(request: TrainRequest, view: View) -> PlanResult:
    """Return the run that `train` would launch. This raises the same errors as `train`."""
    return PlanResult(_first_attempt(request, view).run)


def train(request: TrainRequest, view: View) -> TrainResult:
    """Train to the end; return right after the launch if `request.detach` is set.

    Raises:
        ClusterChanged: the cluster has changed since the training was planned. `again`
            retries the operation.
        Detached: a signal has ended this process only; the training continues.
        Interrupted: the training was stopped.
        FtclusterError: the request is not valid, or the training failed.
    """
    attempt = _first_attempt(request, view)
    for line in headline_of(attempt.run):
        view.say(line)
    progress = _done_before(attempt, view) if request.job and not request.resume else None
    if progress:
        return TrainResult(attempt.run, progress)
    job = request.job if request.requeue else None
    with requeued(job, view) if job else contextlib.nullcontext():
        return _train_with_failover(attempt, view)


def _first_attempt(request: TrainRequest, view: View) -> _Attempt:
    job = request.job
    cluster = cluster_of_job(job) if job else cluster_of(request.connection, view)
    must_resume = bool(request.resume)  # other runs may restart from the beginning
    if job and not must_resume and (earlier := earlier_run(job, request.launch.command)):
        request = _resuming(request, earlier)
    request, run = _prepared(request, cluster, must_resume)
    return _Attempt(request, cluster, run, must_resume)


def _resuming(request: TrainRequest, run: str) -> TrainRequest:
    """Return the request with `resume` set to `run`, a run that this request has launched."""
    return replace(request, resume=run, words=(), data=None, model=None)


def _prepared(
    request: TrainRequest, cluster: Cluster, must_resume: bool
) -> tuple[TrainRequest, TrainingRun]:
    """Return the run, and the request with all options of its launch."""
    if request.resume:  # if the head is lost, find_job reads the run's job on another host
        run_hosts = replace(run_hosts_of(cluster), options=request.connection.to(cluster))
        job = find_job(run_hosts, request.resume, request.user_code())
        shape = HostCounts(request.nodes, request.spares, request.ranks_per_host)
        shape, launch, note = with_kept_options(shape, request.launch, job, recorded_env(job.run))
        partly = bool(request.connection.inventories)
        run = resumed_run(job, cluster, shape, must_resume, request.run_name, partly, request.hosts)
        run = replace(run, notes=(*filter(None, [note]), *run.notes))
    else:
        launch, run = request.launch, request.prepared(cluster)
    if launch.max_restarts is None:
        launch = replace(launch, max_restarts=TRAINING_RESTARTS)
    return replace(request, launch=launch), launch.applied_to(run)


def _done_before(attempt: _Attempt, view: View) -> RunProgress | None:
    """Return the progress of the run that a requeued Slurm job would continue.

    Return None if the run is not done.
    """
    run_hosts, run = run_hosts_of(attempt.cluster), attempt.request.resume
    if not run or find_run(run_hosts, run).state != "done":
        return None
    return attach(run_hosts, run, view).progress


def _train_with_failover(attempt: _Attempt, view: View) -> TrainResult:
    """Train to the end. With `watch`, continue on the remaining hosts if the head is lost.

    Raises:
        HeadLost: the head was lost, and `watch` is not set or the restarts are used up.
        FtclusterError: the training failed, see `training_run.train`.
        Interrupted: the training was stopped.
    """
    request, cluster, connection_options = (
        attempt.request,
        attempt.cluster,
        attempt.connection_options,
    )
    run, must_resume = attempt.run, attempt.must_resume
    limit = HEAD_SECONDS if request.watch else RECONNECT_LIMIT_SECONDS
    token = find_token() if request.hub_token else ""
    moves = (request.launch.max_restarts or 0) if request.watch else 0
    while True:
        ensure_head_access(run, connection_options, view)
        say_notes(run, view)
        launched = replace(run, hub_token=token, must_resume=must_resume)
        try:
            progress = training_run.train(launched, view, connection_options, request.detach, limit)
            return TrainResult(launched, progress)
        except HeadLost as error:
            if not moves:
                raise
            view.say(f"{error.message}; continuing on the other hosts")
        moves -= 1
        # spares may be used up, and `hosts` may name the lost head
        request = replace(_resuming(request, run.id), hosts=(), nodes=None, spares=None)
        request, run = _prepared(request, cluster, must_resume)
