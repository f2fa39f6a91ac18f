"""The training loop: data-parallel, every rank does the same steps on its share of each batch.

It is one loop for all tasks; what they differ in is in `ftcluster_train.tasks`, what makes a step
fast in `ftcluster_train.kernels` and `ftcluster_train.optim.optimizer_step`.
"""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from transformers import PreTrainedModel

from ftcluster_common.job import Job
from ftcluster_train.data.sampler import Order, micro_batches, own_share
from ftcluster_train.data.token_store import Samples
from ftcluster_train.distributed.world import (
    World,
    check_equal_on_ranks,
    gather_over_ranks,
    sum_over_ranks,
)
from ftcluster_train.errors import TrainError
from ftcluster_train.kernels import Gains
from ftcluster_train.kernels.function_overrides import Kernels
from ftcluster_train.optim.optimizer_step import make_update
from ftcluster_train.tasks.base import Task
from ftcluster_train.training.checkpoints import Checkpoints
from ftcluster_train.training.evaluation import evaluate_all
from ftcluster_train.training.intervals import Cadence
from ftcluster_train.training.lr_schedule import make_schedule
from ftcluster_train.training.models import outputs_of
from ftcluster_train.training.patch_model import fuse
from ftcluster_train.training.progress import Tell

ALL_GAINS = Gains()
SHOWN = 8  # samples of a batch that an error names


@dataclass
class Report:
    """What a training has measured.

    Attributes:
        steps: optimizer steps done.
        samples: training samples of all ranks.
        train_seconds: time of the training loop; evaluation and checkpoints are left out.
        metrics: of the last evaluation, or of the best one where its model is taken.
    """

    steps: int = 0
    samples: int = 0
    train_seconds: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def samples_per_second(self) -> float:
        """Training samples of all ranks over the time of the training loop."""
        return self.samples / self.train_seconds if self.train_seconds else 0.0


def train(
    job: Job,
    task: Task,
    model: PreTrainedModel,
    train_set: Samples,
    validation_sets: Mapping[str, Samples],
    world: World,
    tell: Tell,
    gains: Gains = ALL_GAINS,
) -> tuple[Report, PreTrainedModel]:
    """Train `model` and return it as `from_pretrained` would have it, the same on every rank.

    Only where the recipe wants the best model, rank 0 alone has it.

    Args:
        job: the run.
        task: what the samples are and what the loss is.
        model: in fp32.
        train_set: what it learns from.
        validation_sets: what is evaluated, by name.
        world: this rank among all.
        tell: where rank 0 tells its progress.
        gains: which of the gains are taken; all, but for a measurement.

    Raises:
        TrainError: the loss is no longer a number, ranks have come apart, the recipe asks for what
            this transformers has not, or IPEX is asked for and cannot be had.
    """
    recipe, settings, bf16 = job.recipe, job.recipe.training, job.precision == "bf16"
    torch.use_deterministic_algorithms(settings.full_determinism)
    lengths = train_set.lengths("input_ids")
    order = Order(lengths, recipe.batch_size, settings, gains.lengths)
    cadence = Cadence(settings, order.steps, order.steps_per_epoch)
    if job.ipex:  # its layers are no products that torch knows of
        gains = replace(gains, vocabulary=False)
    kernels = fuse(model, task, recipe.attention_dropout, gains, tell)
    if settings.gradient_checkpointing:
        _compute_again(model, kernels)
    update = make_update(job, model, world.size, gains.weights)
    schedule = make_schedule(update.optimizer, settings, order.steps)
    checkpoints = Checkpoints(job, task.tokenizer, update, world.rank == 0, tell)
    report = Report()
    tell.start(
        order.steps,
        order.steps_per_epoch,
        world_size=world.size,
        threads_per_rank=torch.get_num_threads(),
        backend=world.backend,
        precision=job.precision,
        ipex=job.ipex,
        train_samples=order.samples,
        parameters=sum(p.numel() for p in model.parameters()),
    )

    def prove_equal(step: int) -> None:
        digest = update.digest()
        check_equal_on_ranks(digest, step)
        tell.parameters(step, digest)

    def evaluate(step: int) -> None:
        report.metrics = evaluate_all(task, model, validation_sets, world, bf16)
        tell.evaluation(step, report.metrics)
        model.train()

    if settings.eval_on_start:
        evaluate(0)
    model.train()
    proved = False
    losses: list[float] = []  # of this rank, since the last progress was told
    began = time.perf_counter()
    for step, indices in enumerate(order, start=1):
        torch.manual_seed(_dropout_seed(settings.seed, step, world.rank))
        own = own_share(indices, world.rank, world.size)
        parts = micro_batches(own, settings.gradient_accumulation_steps)
        losses.append(0.0)
        for part in parts:
            inputs, targets = task.collate([train_set[i] for i in part])
            with kernels:
                with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                    outputs = outputs_of(model, inputs)
                loss = task.loss(outputs, targets) / len(indices)
                update.backward(loss, last=part is parts[-1])
            losses[-1] += loss.item()
        changes = schedule.get_last_lr()[0] > 0
        norm = update.step()
        if not math.isfinite(norm):
            kept = checkpoints.save(step - 1) if step > 1 else None
            raise _not_a_number(step, losses[-1], own, kept)
        schedule.step()
        report.steps, report.samples = step, report.samples + len(indices)
        if changes and not proved:  # with warm-up the first step changes nothing
            proved = True
            check_equal_on_ranks(update.gradients_digest(), step, "gradients")
            prove_equal(step)
        if cadence.logs(step):
            mean = sum_over_ranks([math.fsum(losses)])[0] / len(losses)
            seconds = report.train_seconds + time.perf_counter() - began
            tell.step(step, mean, norm, schedule.get_last_lr()[0], report.samples, seconds)
            losses.clear()
        if cadence.evaluates(step) or cadence.saves(step):
            report.train_seconds += time.perf_counter() - began
            improved = False
            if cadence.evaluates(step):
                evaluate(step)
                improved = checkpoints.judge(report.metrics, step)
            if cadence.saves(step, improved) or (improved and settings.load_best_model_at_end):
                prove_equal(step)
                checkpoints.save(step)
            began = time.perf_counter()
    report.train_seconds += time.perf_counter() - began
    prove_equal(report.steps)
    trained = update.release()
    if settings.load_best_model_at_end:
        report.metrics = checkpoints.load_best(trained)
    return report, trained


def _compute_again(model: PreTrainedModel, kernels: Kernels) -> None:
    """Have the backward pass compute activations again, with the kernels of the forward pass.

    torch runs the whole backward pass as one function under them, so by itself without them.
    """
    # transformers 5 has another name for it
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    contexts = (nullcontext(), kernels)
    enable({"use_reentrant": False, "context_fn": lambda: contexts})


def _dropout_seed(seed: int, step: int, rank: int) -> int:
    """Each rank drops out other activations in each step, and the same ones in each run."""
    return ((seed * 1_000_003 + step) * 65_537 + rank) % (1 << 64)


def _not_a_number(
    step: int, loss: float, samples: Sequence[int], checkpoint: Path | None
) -> TrainError:
    """The error for gradients that are no numbers; every rank calls it."""
    found = gather_over_ranks((loss, list(samples)))
    bad = [rank for rank, (of_rank, _) in enumerate(found) if not math.isfinite(of_rank)]
    message = f"the gradients are not finite at step {step}, though the loss of every rank is"
    if bad:
        value, own = found[bad[0]]
        shown = ", ".join(map(str, own[:SHOWN])) + (" ..." if len(own) > SHOWN else "")
        ranks = f"rank {bad[0]}" if len(bad) == 1 else f"ranks {bad}"
        message = (
            f"the loss is {value} at step {step} on {ranks}; "
            f"rank {bad[0]}'s part of the batch: samples {shown} of train, from 0"
        )
    if checkpoint:
        message += f"; the model before it is in {checkpoint} on the head"
    return TrainError(message, "lower the learning rate: training.learning_rate=1e-5")
