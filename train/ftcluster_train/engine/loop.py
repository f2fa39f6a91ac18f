"""The training loop: data-parallel, every rank takes the same steps on its share of each batch.

`train` reads from top to bottom: data, model, optimizer, then for each step a batch, forward and
backward passes and the optimizer (`ftcluster_train.engine.step`), log, evaluate, save. Tasks
(batches, losses, metrics) are in `ftcluster_train.engine.tasks`, faster versions of torch functions
in `ftcluster_kernels`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from ftcluster_common.protocol.job import Job
from ftcluster_kernels.nf4 import shape_of
from ftcluster_train.comm.world import World, check_equal_on_ranks, gather_over_ranks
from ftcluster_train.engine.checkpoints import Checkpoints
from ftcluster_train.engine.data.token_samples import Samples
from ftcluster_train.engine.evaluation import Evaluator
from ftcluster_train.engine.optim.base import OptimizerStep
from ftcluster_train.engine.optim.flat_params import state_layout
from ftcluster_train.engine.optim.optimizer_step import make_optimizer_step, make_schedule, set_step
from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.engine.saved_check import SavedCheck
from ftcluster_train.engine.snapshots import Snapshots
from ftcluster_train.engine.state_files import resume, state_folders
from ftcluster_train.engine.step import (
    Batches,
    StepResult,
    enable_gradient_checkpointing,
    make_step,
)
from ftcluster_train.engine.step_times import StepTimes
from ftcluster_train.engine.tasks.base import Task
from ftcluster_train.engine.train_state import Intervals, TrainState
from ftcluster_train.errors import TrainError, TrainingStopped
from ftcluster_train.io.rank_status import report
from ftcluster_train.patching.patch_model import (
    Optimizations,
    disable_dropout,
    left_alone,
    patch_model,
)

ALL_OPTIMIZATIONS = Optimizations()
SHOWN_SAMPLES = 8  # of a batch whose loss is NaN


@dataclass(frozen=True)
class LoopResult:
    """What a training has measured.

    Attributes:
        metrics: of the last evaluation, or of the best one where its model is loaded at the end.
            Likewise classes, see `Scores`.
        train_seconds: without evaluation and checkpoints.
        step: after which the model is as it is returned.
    """

    metrics: dict[str, float]
    train_seconds: float
    samples_per_second: float
    classes: dict[str, Any] = field(default_factory=dict)
    step: int = 0


def train(
    job: Job, task: Task, model: PreTrainedModel, train_set: Samples,
    validation_sets: Mapping[str, Samples], world: World, log: ProgressLog,
    optimizations: Optimizations = ALL_OPTIMIZATIONS,
    stop_asked: Callable[[], bool] = lambda: False, check: SavedCheck | None = None,
) -> tuple[LoopResult, PreTrainedModel]:  # fmt: skip
    """Train `model`; returns it in fp32 on rank 0.

    Args:
        model: in fp32.
        optimizations: all of them, except for measurements.
        stop_asked: whether this rank was asked to stop; once one was, all stop after a step.
        check: of the first checkpoint that this rank writes.

    Raises:
        TrainingStopped: a rank was asked to stop; the state is saved.
        TrainError: the loss is not finite, the ranks have diverged, the recipe asks for something
            that this transformers does not have, or for IPEX, which cannot be loaded.
    """
    settings, bf16 = job.recipe.training, job.precision == "bf16"
    torch.use_deterministic_algorithms(settings.full_determinism)

    # data: which samples each step takes; every rank computes the same list
    batches = Batches(job, task, train_set, world, optimizations.group_by_length)
    intervals = Intervals(settings, batches.steps_per_epoch, batches.steps)

    if task.disables_dropout:
        disable_dropout(model)

    # model: its calls of torch functions go to our kernels while `kernels` is active
    if job.ipex:  # its linear layers do not call torch's function, which the fused loss overrides
        optimizations = replace(optimizations, cross_entropy=False)
    kernels = patch_model(model, task, job.recipe.attention_dropout, optimizations, log)
    if settings.gradient_checkpointing:
        enable_gradient_checkpointing(model, kernels)

    # optimizer: fp32 master weights, the model's own in bf16 or fp32
    optimizer = make_optimizer_step(job, model, world.size, optimizations.bf16_weights)
    kernels.pending_gathers = optimizer.pending_gathers
    schedule = make_schedule(optimizer.adamw, settings, batches.steps)
    evaluator = Evaluator(task, model, optimizer.pending_gathers, world, bf16, log)
    if task.needs_reference:
        evaluator.compute_reference(job, [train_set, *validation_sets.values()])
    log_start(job, model, train_set, batches, world, log)

    # state: of this run after a restart, or of the run that it continues
    snapshots = Snapshots(
        job.run_dir / "snapshots", job.snapshot_seconds, job.shard_optimizer, world, log.notice,
        job.shared_folder,
    )  # fmt: skip
    state = resume(job, optimizer, world, new_state(job, model, train_set, batches, world), log)
    if state.step:
        set_step(schedule, state.step)
    checkpoints = Checkpoints(job, state.step, world, log, check)
    first_step, seconds_before = state.step + 1, state.seconds
    task.use_scores(state.classes)
    choose_best = settings.load_best_model_at_end or settings.save_strategy == "best"
    compares = choose_best or settings.early_stopping_patience is not None
    compared = False  # whether ranks were compared after weights changed
    times = StepTimes(optimizer.traffic, world)
    training_step = make_step(task, model, optimizer, kernels, times, bf16)
    if settings.eval_on_start and first_step == 1:
        with times.pause():
            state.metrics, state.classes, _ = evaluator.evaluate(validation_sets, 0, 0.0)
    model.train()
    for step, indices in batches.after(state.step):
        report(step, "forward")
        optimizer.control_flags.copy_(torch.tensor([stop_asked(), snapshots.is_pausing()]))
        with times:
            batch = batches.read(step, indices)
        learning_rate = schedule.get_last_lr()[0]
        optimizer.start_batch(batch.by_rank)
        done = training_step.run(batch)
        if step == first_step:
            used = training_step.kernels_used  # None: this rank has no sample in the first step
            log.write("kernels", used=used or [])
            if used is not None and (own := left_alone(model, used)):
                log.notice(own)
        if not math.isfinite(done.grad_norm):  # the weights were not updated
            saved = None
            if step > first_step:
                optimizer.synchronize()
                saved = checkpoints.save(optimizer, task, state)
            raise not_finite_error(step, done.loss, batch.share, saved)
        schedule.step()
        times.end_step(done.loss, batch.tokens)
        state.step, state.samples = step, state.samples + batch.samples
        state.seconds = seconds_before + times.train_seconds
        # whether any rank was asked to stop, and whether any is pausing
        asked, pausing = map(bool, optimizer.control_flags)
        stopping = asked and step < batches.steps

        # once: do all ranks have the same gradients and weights? (0 at the start of a warm-up)
        if learning_rate > 0 and not compared:
            compared = True
            check_equal_on_ranks(optimizer.gradients_digest(), step, "gradients")
            check_equal_weights(optimizer, step, log)

        if intervals.logs(step):
            log_step(state, done, schedule.get_last_lr()[0], intervals, times, log)

        evaluates, saves = intervals.evaluates(step), intervals.saves(step)
        if evaluates or saves or stopping:
            optimizer.synchronize()
            with times.pause():
                if evaluates:
                    report(step, "evaluating")
                    epoch = intervals.epoch(step)
                    scores = evaluator.evaluate(validation_sets, step, epoch)
                    state.metrics, state.classes = scores.metrics, scores.classes
                    better = compares and state.update_best(settings)
                    saves |= choose_best and better
                if saves or stopping:
                    report(step, "saving")
                    check_equal_weights(optimizer, step, log)
                    checkpoints.save(optimizer, task, state)
            if evaluates and step < batches.steps and state.stops(settings):
                log.notice(state.stopped_early(settings))
                break
            if stopping:
                snapshots.wait()
                raise TrainingStopped
        if not pausing:
            snapshots.take(optimizer, state)

    optimizer.synchronize()
    seconds = seconds_before + times.train_seconds
    report(state.step, "saving")
    check_equal_weights(optimizer, state.step, log)
    snapshots.wait()
    trained = optimizer.detach(wanted=world.rank == 0)
    metrics, classes, at = state.metrics, state.classes, state.step
    if settings.load_best_model_at_end and checkpoints.load_best(
        trained, state, state_folders(job)
    ):
        metrics, classes, at = state.best_metrics, state.best_classes, state.best_step or at
    task.use_scores(classes)
    return LoopResult(metrics, seconds, state.samples / seconds, classes, at), trained


def log_start(
    job: Job, model: PreTrainedModel, train_set: Samples, batches: Batches, world: World,
    log: ProgressLog,
) -> None:  # fmt: skip
    """Log what is trained, and how."""
    log.write(
        "start",
        steps=batches.steps,
        epochs=batches.steps / batches.steps_per_epoch,
        world_size=world.size,
        threads_per_rank=torch.get_num_threads(),
        backend=world.backend,
        precision=job.precision,
        ipex=job.ipex,
        train_samples=len(train_set),
        parameters=sum(shape_of(p).numel() for p in model.parameters()),
    )


def new_state(
    job: Job, model: PreTrainedModel, train_set: Samples, batches: Batches, world: World
) -> TrainState:
    """The state before the first step, with what one that is resumed is compared with."""
    settings = job.recipe.training
    compared = {
        "ranks": world.size,
        "precision": job.precision,
        "batch_size": job.recipe.batch_size,
        "steps": batches.steps,
        "learning_rate": settings.learning_rate,
        "seed": settings.seed,
        "load_in_4bit": job.recipe.load_in_4bit,
        "training data": train_set.about["sha256"][:12],
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    return TrainState(settings=compared, layout=state_layout(model))


def log_step(
    state: TrainState, done: StepResult, learning_rate: float, intervals: Intervals,
    times: StepTimes, log: ProgressLog,
) -> None:  # fmt: skip
    """Log where the training is, and where the ranks' time went; every rank calls it."""
    loss, communication = times.over_ranks()
    log.write(
        "step",
        step=state.step,
        epoch=intervals.epoch(state.step),
        loss=loss,
        grad_norm=done.grad_norm,
        learning_rate=learning_rate,
        samples_per_second=state.samples / state.seconds,
        train_seconds=round(state.seconds, 3),
        remaining_seconds=state.seconds / state.step * (intervals.last_step - state.step),
    )
    log.write("communication", step=state.step, **communication)


def check_equal_weights(optimizer: OptimizerStep, step: int, log: ProgressLog) -> None:
    """Make sure that all ranks have the same weights.

    Raises:
        TrainError: they have not.
    """
    digest = optimizer.digest()
    check_equal_on_ranks(digest, step)
    log.write("parameters", step=step, equal=True, sha256=digest)


def not_finite_error(
    step: int, loss: float, share: Sequence[int], checkpoint: Path | None
) -> TrainError:
    """The error for a loss or gradients that are not finite; every rank has to call it."""
    by_rank = gather_over_ranks((loss, list(share)))
    bad = [rank for rank, (value, _) in enumerate(by_rank) if not math.isfinite(value)]
    message = f"the gradients are not finite at step {step}, though the loss of every rank is"
    if bad:
        value, samples = by_rank[bad[0]]
        shown = ", ".join(map(str, samples[:SHOWN_SAMPLES]))
        more = " ..." if len(samples) > SHOWN_SAMPLES else ""
        ranks = f"rank {bad[0]}" if len(bad) == 1 else f"ranks {bad}"
        message = (
            f"the loss is {value} at step {step} on {ranks}; "
            f"rank {bad[0]}'s part of the batch: samples {shown}{more} of train, from 0"
        )
    if checkpoint:
        message += f"; the model before this step is in {checkpoint} on the head"
    return TrainError(message, "lower the learning rate: training.learning_rate=1e-5")
