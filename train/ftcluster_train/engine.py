"""The training loop: data-parallel, every rank does the same steps on its share of each batch."""

import math
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    get_linear_schedule_with_warmup,
)

from ftcluster_train.data import Samples, collate, epoch_batches
from ftcluster_train.errors import TrainError
from ftcluster_train.events import EventWriter
from ftcluster_train.ipex import optimize
from ftcluster_train.job import Job
from ftcluster_train.metrics import classification_metrics, count_predictions
from ftcluster_train.world import World, check_equal_parameters, sum_over_ranks

EVAL_BATCH = 64  # samples a rank at once; without gradients there is room for more than in training


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
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    train_set: Samples,
    validation_set: Samples,
    world: World,
    events: EventWriter | None,
) -> Report:
    """Train `model` in place; on return it is the same on every rank.

    Args:
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
        for indices in epoch_batches(len(train_set), batch_size, settings.seed, epoch):
            own = indices[world.rank :: world.size]
            batch = collate(train_set, own or indices[:1], tokenizer)
            labels = batch.pop("labels")
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                logits = ddp(**batch).logits
            # DDP averages over ranks; this weight makes it the mean over the batch's samples, also
            # where ranks have unequal shares of the last batch, or none.
            weight = len(own) * world.size / len(indices)
            loss = cross_entropy(logits.float(), labels) * weight
            loss.backward()
            if settings.max_grad_norm > 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            report.steps += 1
            report.samples += len(indices)
            recent_loss, recent_steps = recent_loss + loss.item(), recent_steps + 1
            if report.steps == 1:
                check_equal_parameters(model, world, 1)
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
        report.metrics = evaluate(job, model, tokenizer, validation_set, world)
        if events:
            events.write(
                "evaluation",
                step=report.steps,
                epoch=round(report.steps / steps_per_epoch, 4),
                metrics=report.metrics,
            )
    digest = check_equal_parameters(model, world, report.steps)
    if events:
        events.write("parameters", step=report.steps, equal=True, sha256=digest)
    return report


@torch.inference_mode()  # type: ignore[untyped-decorator]
def evaluate(
    job: Job,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    samples: Samples,
    world: World,
) -> dict[str, float]:
    """The task's metrics over all samples, each evaluated by one rank; the same on every rank."""
    model.eval()
    by_length = sorted(range(len(samples)), key=lambda i: len(samples.encodings[i]["input_ids"]))
    own = by_length[world.rank :: world.size]
    counts = count_predictions([], [])
    for begin in range(0, len(own), EVAL_BATCH):
        batch = collate(samples, own[begin : begin + EVAL_BATCH], tokenizer)
        labels = batch.pop("labels")
        with torch.autocast("cpu", torch.bfloat16, enabled=job.precision == "bf16"):
            predictions = model(**batch).logits.argmax(dim=-1)
        found = count_predictions(predictions.tolist(), labels.tolist())
        counts = [a + b for a, b in zip(counts, found, strict=True)]
    return classification_metrics(sum_over_ranks(counts), model.config.num_labels)


def _parameter_groups(model: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Biases and norms, which have one dimension, are not decayed."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    return [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
