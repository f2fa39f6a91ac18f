"""The data-parallel training loop: in each step, each rank trains on its share of the batch.

The phases are methods of `_Loop`, which `train` calls. After the setup, each step reads a batch,
runs forward and backward passes and the optimizer (`ftcluster_train.engine.step`), logs its
results, and evaluates and saves the model if this is due.

Tasks (batches, losses, metrics) are in `ftcluster_train.engine.tasks`. Faster versions of torch
functions are in `ftcluster_kernels`.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, NoReturn

import torch
import transformers
from transformers import PreTrainedModel

from ftcluster_common.data.data_sets import weights_of
from ftcluster_common.protocol.job import Job
from ftcluster_kernels.nf4 import shape_of
from ftcluster_train.comm.traffic import Timeline
from ftcluster_train.comm.world import World, check_equal_on_ranks, gather_over_ranks
from ftcluster_train.engine.checkpoints import Checkpoints
from ftcluster_train.engine.data.token_samples import Samples
from ftcluster_train.engine.evaluation import Evaluator, Scores, evaluate_tests
from ftcluster_train.engine.optim.base import OptimizerStep
from ftcluster_train.engine.optim.flat_params import state_layout
from ftcluster_train.engine.optim.optimizer_step import make_optimizer_step, make_schedule, set_step
from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.engine.saved_check import SavedCheck
from ftcluster_train.engine.snapshots import Snapshots
from ftcluster_train.engine.state_files import resume, state_folders
from ftcluster_train.engine.step import (
    Batches,
    StepBatch,
    StepResult,
    enable_gradient_checkpointing,
    make_step,
)
from ftcluster_train.engine.step_times import StepTimes
from ftcluster_train.engine.tasks.base import Task
from ftcluster_train.engine.train_state import Intervals, TrainState
from ftcluster_train.errors import TrainError, TrainingStopped
from ftcluster_train.io.rank_status import report
from ftcluster_train.patching.kernel_mode import KernelMode
from ftcluster_train.patching.patch_model import (
    Optimizations,
    disable_dropout,
    parts_without_kernel,
    patch_model,
)

ALL_OPTIMIZATIONS = Optimizations()
NO_SETS: Mapping[str, Samples] = {}
RECORDED_STEP = 5  # step since the ranks started whose parts are logged; the first ones are slower
SHOWN_SAMPLES = 8  # maximum number of samples that the error about a NaN loss lists


@dataclass(frozen=True)
class LoopResult:
    """The results of a training run.

    Attributes:
        metrics: metrics of the last evaluation, by name; if the best model is loaded at the end,
            metrics of the best evaluation. The names of test metrics begin with `test_`.
        classes: class reports of the evaluation that `metrics` comes from, see `Scores`.
        train_seconds: training time in seconds, without evaluations and checkpoints.
        step: number of optimizer steps that the returned model was trained for.
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
    sizes: Sequence[int] = (), test_sets: Mapping[str, Samples] = NO_SETS,
) -> tuple[LoopResult, PreTrainedModel]:  # fmt: skip
    """Train `model` and return it in fp32 on rank 0.

    Args:
        model: model in fp32.
        optimizations: optimizations to use; all are enabled, except in measurements.
        stop_asked: function that returns True once this rank was asked to stop. If any rank was
            asked, all ranks stop after the current step.
        check: validator for the first checkpoint that this rank writes, or None for no check.
        sizes: number of training samples in each data set; may be empty for a single data set.
        test_sets: sets that are evaluated once, with the model that is returned.

    Raises:
        TrainingStopped: a rank was asked to stop; the state is saved.
        TrainError: the loss is not finite, the ranks have diverged, IPEX cannot be loaded, or the
            installed transformers lacks a feature that the recipe needs.
    """
    loop = _Loop(
        job, task, model, train_set, validation_sets, world, log, optimizations, stop_asked, check,
        sizes, test_sets,
    )  # fmt: skip
    loop.evaluate_at_start()
    for step, indices in loop.batches.after(loop.state.step):
        loop.take_step(step, indices)
        if loop.evaluate_and_save():
            break
        loop.take_snapshot()
    return loop.finish()


class _Loop:
    """The parts and phases of a training run; `train` calls the phases.

    The arguments are those of `train`.

    Attributes:
        batches: sample indices of each step, the same on every rank.
        state: progress of the run; a resumed run does not begin at step 0.
    """

    def __init__(
        self, job: Job, task: Task, model: PreTrainedModel, train_set: Samples,
        validation_sets: Mapping[str, Samples], world: World, log: ProgressLog,
        optimizations: Optimizations, stop_asked: Callable[[], bool], check: SavedCheck | None,
        sizes: Sequence[int], test_sets: Mapping[str, Samples],
    ) -> None:  # fmt: skip
        self._job, self._task, self._model, self._world, self._log = job, task, model, world, log
        self._validation_sets, self._stop_asked = validation_sets, stop_asked
        self._test_sets = test_sets
        self._settings, bf16 = job.recipe.training, job.precision == "bf16"
        torch.use_deterministic_algorithms(self._settings.full_determinism)
        self.batches = Batches(job, task, train_set, world, optimizations.group_by_length, sizes)
        self._intervals = Intervals(
            self._settings, self.batches.steps_per_epoch, self.batches.steps
        )
        kernels = self._patch(optimizations)
        # fp32 master weights, and the model's weights in bf16 or fp32
        optimizer = make_optimizer_step(job, model, world.size, optimizations.bf16_weights)
        self._optimizer = optimizer
        self._schedule = make_schedule(optimizer.adamw, self._settings, self.batches.steps)
        self._evaluator = Evaluator(task, model, optimizer, world, bf16, log)
        if task.needs_reference:
            others = validation_sets.values() if task.references_validation else ()
            tests = test_sets.values() if task.references_validation else ()
            self._evaluator.compute_reference(job, [train_set, *others, *tests])
        log_start(job, model, train_set, self.batches, world, log)
        self._resume(new_state(job, model, train_set, self.batches, world), check)
        self._times = StepTimes(optimizer.traffic, world)
        self._training_step = make_step(task, model, optimizer, kernels, self._times, bf16)
        # values of the latest step
        self._learning_rate, self._pausing, self._stopping = 0.0, False, False

    def _patch(self, optimizations: Optimizations) -> KernelMode:
        """Patch the model, and return the mode in which torch functions use our kernels."""
        if self._task.disables_dropout:
            disable_dropout(self._model)
        if self._job.ipex:  # IPEX's linear layers do not call torch's function
            optimizations = replace(optimizations, cross_entropy=False)
        dropout = self._job.recipe.attention_dropout
        kernels = patch_model(self._model, self._task, dropout, optimizations, self._log)
        if self._settings.gradient_checkpointing:
            enable_gradient_checkpointing(self._model, kernels)
        return kernels

    def _resume(self, new: TrainState, check: SavedCheck | None) -> None:
        """Load the saved state of this run (after a restart) or of the run that it resumes."""
        job, world = self._job, self._world
        self._snapshots = Snapshots(
            job.run_dir / "snapshots", job.snapshot_seconds, job.shard_optimizer, world,
            self._log.notice, job.shared_folder,
        )  # fmt: skip
        self.state = resume(job, self._optimizer, world, new, self._log)
        if self.state.step:
            set_step(self._schedule, self.state.step)
        self._checkpoints = Checkpoints(job, self.state.step, world, self._log, check)
        self._first_step, self._seconds_before = self.state.step + 1, self.state.seconds
        self._compared = False  # True once the ranks have been compared after an update
        self._task.use_scores(self.state.classes)

    def evaluate_at_start(self) -> None:
        """Evaluate before the first step if `eval_on_start` is set; then set training mode."""
        if self._settings.eval_on_start and self._first_step == 1:
            with self._times.pause():
                self._evaluate(0, 0.0)
        self._model.train()

    def take_step(self, step: int, indices: Sequence[int]) -> None:
        """Train on a batch and log the step; after the first update, also compare the ranks.

        Raises:
            TrainError: the loss is not finite, or the ranks have diverged.
        """
        report(step, "forward")
        optimizer, state = self._optimizer, self.state
        flags = [self._stop_asked(), self._snapshots.is_pausing()]
        optimizer.control_flags.copy_(torch.tensor(flags))
        with self._times:
            batch = self.batches.read(step, indices)
        self._learning_rate = self._schedule.get_last_lr()[0]
        optimizer.start_batch(batch.by_rank)
        self._task.start_step(step, self.batches.steps)
        with self._recorded(step):
            done = self._training_step.run(batch)
        if step == self._first_step:
            self._log_kernels()
        if not math.isfinite(done.grad_norm):  # the weights were not updated
            self._fail(step, done, batch)
        self._schedule.step()
        self._times.end_step(done.loss, batch.tokens)
        seconds = self._seconds_before + self._times.train_seconds
        state.advance(step, batch.samples, seconds)
        # True if any rank was asked to stop, and True if any rank is pausing
        asked, self._pausing = map(bool, optimizer.control_flags)
        self._stopping = asked and step < self.batches.steps
        self._compare_ranks(step)
        if self._intervals.logs(step):
            rate = self._schedule.get_last_lr()[0]
            log_step(state, done, rate, self._intervals, self._times, self._log)

    @contextmanager
    def _recorded(self, step: int) -> Iterator[None]:
        """Log the parts of a step on this rank if several ranks take step RECORDED_STEP."""
        if step != self._first_step + RECORDED_STEP - 1 or self._world.size == 1:
            yield
            return
        traffic = self._optimizer.traffic
        traffic.timeline = timeline = Timeline()
        yield
        traffic.timeline = None
        self._log.write("timeline", step=step, spans=sorted(timeline.spans, key=itemgetter(2)))

    def _log_kernels(self) -> None:
        used = self._training_step.kernels_used  # None if this rank has no sample in the first step
        self._log.write("kernels", used=used or [])
        if used is not None and (notice := parts_without_kernel(self._model, used)):
            self._log.notice(notice)

    def _fail(self, step: int, done: StepResult, batch: StepBatch) -> NoReturn:
        """Save the model, and raise an error because the loss or the gradients are not finite.

        The failed step has not changed the weights. If the first step fails, no model is saved.
        """
        saved = None
        if step > self._first_step:
            self._optimizer.synchronize()
            saved = self._checkpoints.save(self._optimizer, self._task, self.state)
        raise not_finite_error(step, done.loss, batch.share, saved)

    def _compare_ranks(self, step: int) -> None:
        """Check that all ranks have the same gradients and weights, once per run."""
        if self._learning_rate > 0 and not self._compared:  # 0 at the start of a warm-up
            self._compared = True
            check_equal_on_ranks(self._optimizer.gradients_digest(), step, "gradients")
            check_equal_weights(self._optimizer, step, self._log)

    def evaluate_and_save(self) -> bool:
        """Evaluate and save if due after this step; return True to end the run early.

        Raises:
            TrainingStopped: a rank was asked to stop; the state is saved.
            TrainError: the ranks have diverged.
        """
        settings, state, step = self._settings, self.state, self.state.step
        evaluates, saves = self._intervals.evaluates(step), self._intervals.saves(step)
        if not (evaluates or saves or self._stopping):
            return False
        self._optimizer.synchronize()
        with self._times.pause():
            if evaluates:
                report(step, "evaluating")
                self._evaluate(step, self._intervals.epoch(step))
                saves |= self._is_best()
            if saves or self._stopping:
                report(step, "saving")
                check_equal_weights(self._optimizer, step, self._log)
                self._checkpoints.save(self._optimizer, self._task, state)
        if evaluates and step < self.batches.steps and state.stops(settings):
            self._log.notice(state.stopped_early(settings))
            return True
        if self._stopping:
            self._snapshots.wait()
            raise TrainingStopped
        return False

    def _evaluate(self, step: int, epoch: float) -> None:
        scores = self._evaluator.evaluate(self._validation_sets, step, epoch)
        self.state.take_scores(scores.metrics, scores.classes)

    def _is_best(self) -> bool:
        """Return True if the latest evaluation is the best so far and its model must be saved."""
        settings = self._settings
        chooses = settings.load_best_model_at_end or settings.save_strategy == "best"
        compares = chooses or settings.early_stopping_patience is not None
        return compares and self.state.update_best(settings) and chooses

    def take_snapshot(self) -> None:
        """Take a snapshot of the training state if a snapshot is due and no rank is pausing."""
        if not self._pausing:
            self._snapshots.take(self._optimizer, self.state)

    def finish(self) -> tuple[LoopResult, PreTrainedModel]:
        """Finish the run, and return its results and its last or best model.

        Raises:
            TrainError: the ranks have diverged.
        """
        state = self.state
        self._optimizer.synchronize()
        seconds = self._seconds_before + self._times.train_seconds
        report(state.step, "saving")
        check_equal_weights(self._optimizer, state.step, self._log)
        self._snapshots.wait()
        trained = self._optimizer.detach(wanted=self._world.rank == 0)
        metrics, classes, at = state.metrics, state.classes, state.step
        if self._settings.load_best_model_at_end and self._checkpoints.load_best(
            trained, state, state_folders(self._job)
        ):
            metrics, classes = state.best_metrics, state.best_classes
            at = state.best_step or at
        self._task.use_scores(classes)
        if self._test_sets:
            test = self._test(trained)
            metrics, classes = {**metrics, **test.metrics}, {**classes, **test.classes}
        return LoopResult(metrics, seconds, state.samples / seconds, classes, at), trained

    def _test(self, trained: PreTrainedModel) -> Scores:
        """Evaluate the detached model on the test sets; every rank must call this method.

        Rank 0 evaluates fp32 weights. The other ranks evaluate weights in the dtype used for
        training, so that a test set needs no more memory than a validation set.
        """
        report(self.state.step, "evaluating")
        count = sum(map(len, self._test_sets.values()))
        self._log.write("phase", doing=f"evaluating {count} test samples")
        context = self._optimizer.context if trained is self._model else None
        bf16 = self._job.precision == "bf16"
        return evaluate_tests(self._task, trained, self._test_sets, self._world, bf16, context)


def log_start(
    job: Job, model: PreTrainedModel, train_set: Samples, batches: Batches, world: World,
    log: ProgressLog,
) -> None:  # fmt: skip
    """Log facts about the run, such as its number of steps and parameters."""
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
    """Return the state before the first step.

    The state includes settings. If settings have changed when the run resumes, a notice lists them.
    """
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
    if len(job.recipe.data_sets) > 1:
        weights = weights_of(job.recipe.data_sets, job.recipe.data_mixing)
        compared["weights of the data sets"] = weights or "by size"
    return TrainState(settings=compared, layout=state_layout(model))


def log_step(
    state: TrainState, done: StepResult, learning_rate: float, intervals: Intervals,
    times: StepTimes, log: ProgressLog,
) -> None:  # fmt: skip
    """Log the progress and the time use of the ranks; every rank must call this function."""
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
    """Check that all ranks have the same weights.

    Raises:
        TrainError: the weights differ.
    """
    digest = optimizer.digest()
    check_equal_on_ranks(digest, step)
    log.write("parameters", step=step, equal=True, sha256=digest)


def not_finite_error(
    step: int, loss: float, share: Sequence[int], checkpoint: Path | None
) -> TrainError:
    """Return the error for a loss or gradients that are not finite.

    Every rank must call this function.
    """
    by_rank = gather_over_ranks((loss, list(share)))
    bad = [rank for rank, (value, _) in enumerate(by_rank) if not math.isfinite(value)]
    message = f"the gradients are not finite at step {step}, but the loss is finite on every rank"
    if bad:
        value, samples = by_rank[bad[0]]
        shown = ", ".join(map(str, samples[:SHOWN_SAMPLES]))
        more = " ..." if len(samples) > SHOWN_SAMPLES else ""
        ranks = f"rank {bad[0]}" if len(bad) == 1 else f"ranks {bad}"
        message = (
            f"the loss is {value} at step {step} on {ranks}; "
            f"rank {bad[0]}'s part of the batch: samples {shown}{more} of train (the first is 0)"
        )
    if checkpoint:
        message += f"; the model before this step is in {checkpoint} on the head"
    return TrainError(message, "lower the learning rate: training.learning_rate=1e-5")
