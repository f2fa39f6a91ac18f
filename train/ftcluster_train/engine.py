"""The training loop: data-parallel, every rank does the same steps on its share of each batch.

It is one loop for all tasks; what they differ in is in `ftcluster_train.tasks`.
"""

import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel, get_linear_schedule_with_warmup

from ftcluster_train.batches import eval_batches, micro_batches, own_share
from ftcluster_train.errors import TrainError
from ftcluster_train.events import EventWriter
from ftcluster_train.ipex import optimize
from ftcluster_train.job import Job
from ftcluster_train.store import Samples
from ftcluster_train.tasks import Task
from ftcluster_train.world import (
    World,
    check_equal_parameters,
    gather_over_ranks,
    sum_over_ranks,
)


@dataclass
class Report:
    """What a training has measured.

    Attributes:
        steps: optimizer steps done.
        samples: training samples of all ranks.
        train_seconds: time of the training loop, evaluation left out.
        metrics: of the last evaluation.
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
    events: EventWriter | None,
) -> Report:
    """Train `model` in place; on return it is the same on every rank.

    Args:
        job: the run.
        task: what the samples are and what the loss is.
        model: in fp32.
        train_set: what it learns from.
        validation_sets: what is evaluated after each epoch, by name.
        world: this rank among all.
        events: where rank 0 tells its progress; None on the other ranks.

    Raises:
        TrainError: the loss is no longer a number, ranks have come apart, or IPEX is asked for and
            cannot be had.
    """
    settings, batch_size = job.recipe.training, job.recipe.batch_size
    steps_per_epoch = math.ceil(len(train_set) / batch_size)
    steps = math.ceil(steps_per_epoch * settings.num_train_epochs)
    if settings.max_steps > 0:
        steps = settings.max_steps
    bf16 = job.precision == "bf16"
    parameters = sum(p.numel() for p in model.parameters())
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(
        _parameter_groups(model, settings.weight_decay), lr=settings.learning_rate, fused=True
    )
    if job.ipex:  # before DDP, which is to share the gradients of IPEX's own layers
        model, optimizer = optimize(model, optimizer, bf16)
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    schedule = get_linear_schedule_with_warmup(
        optimizer, round(settings.warmup_ratio * steps), steps
    )
    report = Report()
    torch.manual_seed(settings.seed * 1009 + world.rank)  # each rank drops out other activations
    if events:
        events.write(
            "start",
            world_size=world.size,
            threads_per_rank=torch.get_num_threads(),
            backend=world.backend,
            precision=job.precision,
            ipex=job.ipex,
            steps=steps,
            epochs=steps / steps_per_epoch,
            train_samples=len(train_set),
            parameters=parameters,
        )

    epoch, recent_loss, recent_steps = 0, 0.0, 0
    while report.steps < steps:
        model.train()
        began = time.perf_counter()
        for indices in _epoch_batches(len(train_set), batch_size, settings.seed, epoch):
            own = own_share(indices, world.rank, world.size)
            parts = micro_batches(own or indices[:1], settings.gradient_accumulation_steps)
            # DDP averages over ranks; this weight makes it the mean over the batch's samples, also
            # where ranks have unequal shares of the last batch, or none.
            weight = world.size / len(indices) if own else 0.0
            for number, part in enumerate(parts, start=1):
                # gradients are shared once a step, with the last part
                with ddp.no_sync() if number < len(parts) else contextlib.nullcontext():
                    inputs, targets = task.collate([train_set[i] for i in part])
                    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                        outputs = ddp(**inputs)
                    loss = task.loss(outputs, targets) * weight
                    loss.backward()
                recent_loss += loss.item()
            if settings.max_grad_norm > 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            report.steps += 1
            report.samples += len(indices)
            recent_steps += 1
            if report.steps == 1:
                _prove_equal(model, 1, events)
            if report.steps % settings.logging_steps == 0 or report.steps == steps:
                mean = sum_over_ranks([recent_loss])[0] / world.size / recent_steps
                recent_loss, recent_steps = 0.0, 0
                if not math.isfinite(mean):
                    raise TrainError(
                        f"the loss is {mean} at step {report.steps}",
                        "lower the learning rate: training.learning_rate=1e-5",
                    )
                if events:
                    seconds = report.train_seconds + time.perf_counter() - began
                    events.write(
                        "step",
                        step=report.steps,
                        epoch=round(report.steps / steps_per_epoch, 4),
                        loss=mean,
                        learning_rate=schedule.get_last_lr()[0],
                        samples_per_second=report.samples / seconds,
                        remaining_seconds=seconds / report.steps * (steps - report.steps),
                    )
            if report.steps == steps:
                break
        report.train_seconds += time.perf_counter() - began
        epoch += 1
        report.metrics = evaluate_all(task, model, validation_sets, world, bf16)
        if events:
            events.write(
                "evaluation",
                step=report.steps,
                epoch=round(report.steps / steps_per_epoch, 4),
                metrics=report.metrics,
            )
    _prove_equal(model, report.steps, events)
    return report


def evaluate_all(
    task: Task,
    model: PreTrainedModel,
    validation_sets: Mapping[str, Samples],
    world: World,
    bf16: bool,
) -> dict[str, float]:
    """The task's metrics over each set; where there are several, with the set's name behind.

    `validation_matched` gives `accuracy_matched`.
    """
    metrics = {}
    for name, samples in validation_sets.items():
        ending = f"_{name.removeprefix('validation_')}" if len(validation_sets) > 1 else ""
        found = evaluate(task, model, samples, world, bf16)
        metrics.update({f"{metric}{ending}": value for metric, value in found.items()})
    return metrics


@torch.inference_mode()  # type: ignore[untyped-decorator]
def evaluate(
    task: Task, model: PreTrainedModel, samples: Samples, world: World, bf16: bool
) -> dict[str, float]:
    """The task's metrics over all samples, each evaluated by one rank; the same on every rank."""
    model.eval()
    own: list[tuple[int, Any]] = []
    for indices in eval_batches(samples.lengths("input_ids"), world.rank, world.size):
        batch = [samples[i] for i in indices]
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            outputs = model(**task.collate(batch).inputs)
        own += zip(indices, task.predictions(outputs, batch), strict=True)
    of_all = dict(pair for pairs in gather_over_ranks(own) for pair in pairs)
    return task.score([of_all[i] for i in range(len(samples))], samples)


def _epoch_batches(count: int, batch_size: int, seed: int, epoch: int) -> Iterator[list[int]]:
    """Indices of each batch of an epoch, all ranks together, the same on every rank.

    The last batch is smaller where `batch_size` does not divide `count`; no sample is left out and
    none comes twice.
    """
    generator = torch.Generator().manual_seed(seed * 100_003 + epoch)
    order = torch.randperm(count, generator=generator)
    for begin in range(0, count, batch_size):
        yield order[begin : begin + batch_size].tolist()


def _prove_equal(model: torch.nn.Module, step: int, events: EventWriter | None) -> None:
    """Prove that the gradients were shared: every rank has the same parameters.

    Raises:
        TrainError: some differ; names the ranks.
    """
    digest = check_equal_parameters(model, step)
    if events:
        events.write("parameters", step=step, equal=True, sha256=digest)


def _parameter_groups(model: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Biases and norms, which have one dimension, are not decayed."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    return [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
