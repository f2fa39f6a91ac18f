"""The training loop: data-parallel, every rank takes the same steps on its share of each batch.

`train` reads from top to bottom: data, model, optimizer, then for each step forward, backward,
optimizer step, log, evaluate, save. Tasks (batches, loss, metrics) are in
`ftcluster_train.engine.tasks`, faster versions of torch functions in `ftcluster_train.kernels`.
"""

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from ftcluster_common.job import Job
from ftcluster_train.comm.world import (
    World,
    check_equal_on_ranks,
    gather_over_ranks,
)
from ftcluster_train.engine.best import BestEvaluation
from ftcluster_train.engine.checkpoints import Checkpoints
from ftcluster_train.engine.data.sampler import BatchSampler, micro_batches, share_of_rank
from ftcluster_train.engine.data.token_store import Sample, Samples
from ftcluster_train.engine.evaluation import evaluate, predict
from ftcluster_train.engine.intervals import is_due
from ftcluster_train.engine.lr_schedule import make_schedule, set_step
from ftcluster_train.engine.models import call_model
from ftcluster_train.engine.optim.optimizer_step import make_optimizer_step
from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.engine.resume import Position, Snapshots, resume
from ftcluster_train.engine.step_times import StepTimes
from ftcluster_train.engine.stopping import TrainingStopped
from ftcluster_train.engine.tasks.base import Task
from ftcluster_train.errors import TrainError
from ftcluster_train.io.rank_status import report
from ftcluster_train.io.sample_log import log_samples
from ftcluster_train.kernels.nf4 import shape_of
from ftcluster_train.patching.in_use import kernels_in_use
from ftcluster_train.patching.kernel_mode import KernelMode
from ftcluster_train.patching.patch_model import Optimizations, patch_model

ALL_OPTIMIZATIONS = Optimizations()
SHOWN_SAMPLES = 8  # of a batch whose loss is NaN


@dataclass(frozen=True)
class TrainResult:
    """What a training has measured.

    Attributes:
        metrics: of the last evaluation, or of the best one where its model is loaded at the end.
        train_seconds: without evaluation and checkpoints.
    """

    metrics: dict[str, float]
    train_seconds: float
    samples_per_second: float


def train(
    job: Job,
    task: Task,
    model: PreTrainedModel,
    train_set: Samples,
    validation_sets: Mapping[str, Samples],
    world: World,
    log: ProgressLog,
    optimizations: Optimizations = ALL_OPTIMIZATIONS,
    stop_asked: Callable[[], bool] = lambda: False,
) -> tuple[TrainResult, PreTrainedModel]:
    """Train `model`; returns it in fp32 on rank 0.

    Args:
        model: in fp32.
        optimizations: all of them, except for measurements.
        stop_asked: whether this rank was asked to stop; once one was, all stop after a step.

    Raises:
        TrainingStopped: a rank was asked to stop; the state is saved.
        TrainError: the loss is not finite, the ranks have diverged, the recipe asks for something
            that this transformers does not have, or for IPEX, which cannot be loaded.
    """
    recipe, settings = job.recipe, job.recipe.training
    bf16 = job.precision == "bf16"
    torch.use_deterministic_algorithms(settings.full_determinism)

    # data: which samples each step takes; every rank computes the same list
    lengths = train_set.lengths("input_ids")
    sampler = BatchSampler(
        lengths, recipe.batch_size, settings, optimizations.group_by_length and task.group_by_length
    )
    weights = task.weights(train_set)
    epoch_steps, last_step = sampler.steps_per_epoch, sampler.steps

    # model: its calls of torch functions go to our kernels while `kernels` is active
    if job.ipex:  # its linear layers do not call torch's function, which the fused loss overrides
        optimizations = replace(optimizations, cross_entropy=False)
    kernels = patch_model(model, task, recipe.attention_dropout, optimizations, log)
    if settings.gradient_checkpointing:
        enable_gradient_checkpointing(model, kernels)

    # optimizer: fp32 master weights, the model's own in bf16 or fp32
    optimizer = make_optimizer_step(job, model, world.size, optimizations.bf16_weights)
    kernels.arriving = optimizer.arriving
    schedule = make_schedule(optimizer.adamw, settings, last_step)

    # the task may compare the model with what it is now
    def predict_at_start(samples: Samples) -> list[Any]:
        report(0, "evaluating")
        log.write("phase", doing=f"evaluating {len(samples)} samples before the first step")
        optimizer.arriving.wait()
        found: list[Any] = predict(task, model, samples, world, bf16)
        return found

    task.see_start([train_set, *validation_sets.values()], predict_at_start)

    log.write(
        "start",
        steps=last_step,
        epochs=last_step / epoch_steps,
        world_size=world.size,
        threads_per_rank=torch.get_num_threads(),
        backend=world.backend,
        precision=job.precision,
        ipex=job.ipex,
        train_samples=len(train_set),
        parameters=sum(shape_of(p).numel() for p in model.parameters()),
    )

    # state: of this run after a restart, or of the run that it continues
    def notice(text: str) -> None:
        log.write("notice", message=text)

    snapshots = Snapshots(
        job.run_dir / "snapshots", job.snapshot_seconds, job.shard_optimizer, world, notice,
        job.shared_folder,
    )  # fmt: skip
    start = str(settings.resume_from_checkpoint or "")
    states = [run / name for run in job.run_dirs for name in ("checkpoints", "snapshots")]
    wanted = f"run {job.resume[0]}" if job.resume and job.must_resume else ""
    position = resume(
        [*states, *([Path(start)] if start else [])],
        start or wanted,
        optimizer,
        world,
        {
            "ranks": world.size, "precision": job.precision, "batch_size": recipe.batch_size,
            "steps": last_step, "learning_rate": settings.learning_rate, "seed": settings.seed,
            "load_in_4bit": recipe.load_in_4bit,
            "training data": train_set.about["sha256"][:12],
        },
        notice,
    )  # fmt: skip
    first_step = position.step + 1
    if position.step:
        set_step(schedule, position.step)
    checkpoints = Checkpoints(
        job.run_dir / "checkpoints", settings.save_total_limit, position.step, world, log,
        job.shared_folder,
    )  # fmt: skip

    metrics = position.metrics
    best = BestEvaluation(settings)
    best.metric, best.metrics, best.step = (
        position.best_metric or best.metric, position.best_metrics, position.best_step
    )  # fmt: skip
    choose_best = settings.load_best_model_at_end or settings.save_strategy == "best"
    checked = False  # whether ranks were compared after weights changed
    losses: list[float] = []  # of this rank, since the last log
    trained_samples = position.samples
    trained_tokens = 0  # of this rank, with padding
    useful_tokens = 0  # of all ranks, without
    times = StepTimes(optimizer.traffic, world)
    paused = 0.0  # seconds of evaluation and checkpoints, which do not count as training

    def position_after(step: int) -> Position:
        seconds = position.seconds + time.perf_counter() - started - paused
        return Position(
            step, trained_samples, seconds, metrics, best.metric, best.metrics, best.step,
            position.settings,
        )  # fmt: skip

    def epoch_of(step: int) -> float:
        return round(step / epoch_steps, 4)

    def check_equal_weights(step: int) -> None:
        digest = optimizer.digest()
        check_equal_on_ranks(digest, step)
        log.write("parameters", step=step, equal=True, sha256=digest)

    def evaluate_and_log(step: int) -> dict[str, float]:
        optimizer.arriving.wait()  # `kernels` do so in a training step only
        began = time.perf_counter()
        found: dict[str, float] = evaluate(task, model, validation_sets, world, bf16)
        seconds = round(time.perf_counter() - began, 3)
        log.write("evaluation", step=step, epoch=epoch_of(step), metrics=found, seconds=seconds)
        model.train()
        return found

    def forward(samples: Sequence[Sample]) -> tuple[Any, dict[str, torch.Tensor]]:
        nonlocal trained_tokens
        with times:
            inputs, targets = task.collate(samples)
        trained_tokens += inputs["input_ids"].numel()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            return call_model(model, inputs), targets

    started = time.perf_counter()
    if settings.eval_on_start and first_step == 1:
        metrics = evaluate_and_log(0)
    model.train()
    started = time.perf_counter()
    remaining = itertools.islice(sampler, position.step, None)
    for step, batch in enumerate(remaining, start=first_step):  # indices of all ranks' samples
        report(step, "forward")
        optimizer.extra.copy_(torch.tensor([stop_asked(), snapshots.is_pausing()]))
        torch.manual_seed(dropout_seed(settings.seed, step, world.rank))
        counted = sum(weights[i] for i in batch) if weights else len(batch)
        share = share_of_rank(batch, world.rank, world.size)
        with times:
            parts = [
                [train_set[i] for i in part]
                for part in micro_batches(share, settings.gradient_accumulation_steps)
            ]
        if job.log_samples:
            log_samples(job.run_dir, world.rank, step, share)

        # forward and backward; gradients are all-reduced during the last backward pass
        losses.append(0.0)
        with kernels:
            for loss, last in task.losses(parts, forward, optimizer.traffic):
                loss = loss / counted  # a mean over all ranks' samples
                if step == first_step and last:
                    log.write("kernels", used=kernels_in_use(loss, model))
                optimizer.backward(loss, last)
                losses[-1] += loss.item()

        # clip and update
        report(step, "all-reduce")
        learning_rate = schedule.get_last_lr()[0]
        grad_norm = optimizer.step()
        if not math.isfinite(grad_norm):  # the weights were not updated
            kept = None
            if step > first_step:
                optimizer.synchronize()
                kept = checkpoints.save(optimizer, task, position_after(step - 1))
            raise not_finite_error(step, losses[-1], share, kept)
        schedule.step()
        trained_samples += len(batch)
        useful_tokens += sum(lengths[sample] for sample in batch)
        times.end_step()
        asked, pausing = map(bool, optimizer.extra)  # whether any rank was, and whether any is
        stopping = asked and step < last_step

        # once: do all ranks have the same gradients and weights? (0 at the start of a warm-up)
        if learning_rate > 0 and not checked:
            checked = True
            check_equal_on_ranks(optimizer.gradients_digest(), step, "gradients")
            check_equal_weights(step)

        # log
        log_due = is_due(
            step, settings.logging_strategy, settings.logging_steps, epoch_steps, last_step
        )
        if log_due or step == last_step or (step == 1 and settings.logging_first_step):
            seconds = position_after(step).seconds
            loss, of_ranks = times.over_ranks(math.fsum(losses))
            log.write(
                "step",
                step=step,
                epoch=epoch_of(step),
                loss=loss / len(losses),
                grad_norm=grad_norm,
                learning_rate=schedule.get_last_lr()[0],
                samples_per_second=trained_samples / seconds,
                train_seconds=round(seconds, 3),
                remaining_seconds=seconds / step * (last_step - step),
            )
            log.write(
                "communication",
                step=step,
                train_seconds=time.perf_counter() - started - paused,
                tokens=trained_tokens,
                useful_tokens=useful_tokens,
                **of_ranks,
            )
            losses.clear()

        # evaluate and save
        eval_interval = settings.eval_steps or settings.logging_steps
        eval_due = is_due(step, settings.eval_strategy, eval_interval, epoch_steps, last_step)
        save_due = is_due(step, settings.save_strategy, settings.save_steps, epoch_steps, last_step)
        if eval_due or save_due or stopping:
            optimizer.synchronize()
            pause = time.perf_counter()
            improved = False
            if eval_due:
                report(step, "evaluating")
                metrics = evaluate_and_log(step)
                improved = choose_best and best.update(metrics, step)
            if save_due or improved or stopping:
                report(step, "saving")
                check_equal_weights(step)
                checkpoints.save(optimizer, task, position_after(step))
            paused += time.perf_counter() - pause
            if stopping:
                snapshots.wait()
                raise TrainingStopped
        if not pausing:
            snapshots.take(optimizer, lambda: position_after(step))  # noqa: B023 - called at once

    optimizer.synchronize()
    train_seconds = position_after(last_step).seconds
    report(last_step, "saving")
    check_equal_weights(last_step)
    snapshots.wait()
    trained = optimizer.detach(wanted=world.rank == 0)
    if settings.load_best_model_at_end and best.step is not None:
        if checkpoints.load_best(trained, best.step, states):
            metrics = best.metrics
            if settings.save_total_limit == 1:  # the last one goes, the best one stays
                checkpoints.keep_only(best.step)
        else:
            what = f"the best model, of step {best.step}, could not be saved or is lost"
            notice(f"{what}: the model is that of the last step")
    return TrainResult(metrics, train_seconds, trained_samples / train_seconds), trained


def enable_gradient_checkpointing(model: PreTrainedModel, kernels: KernelMode) -> None:
    """Recompute activations in the backward pass, with the same kernels as in the forward pass.

    The backward pass is one function for torch, so `kernels` does not see the calls inside it.
    """
    # transformers 5 has another name for it
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    contexts = (nullcontext(), kernels)
    enable({"use_reentrant": False, "context_fn": lambda: contexts})


def dropout_seed(seed: int, step: int, rank: int) -> int:
    """Each rank and step has another dropout mask, the same one in each run."""
    return ((seed * 1_000_003 + step) * 65_537 + rank) % (1 << 64)


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
