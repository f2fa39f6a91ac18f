"""The batches of a run, and one training step: forward and backward passes, and optimizer."""

import itertools
import json
import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from ftcluster_common.data.data_sets import weights_of
from ftcluster_common.protocol.job import Job
from ftcluster_common.protocol.launch import RESTART_VARIABLE
from ftcluster_train.comm.gather_rows import gather_rows
from ftcluster_train.comm.world import World
from ftcluster_train.engine.data.sampler import (
    BatchSampler,
    MixedSets,
    micro_batches,
    share_of_rank,
)
from ftcluster_train.engine.data.token_samples import Sample, Samples
from ftcluster_train.engine.models import call_model
from ftcluster_train.engine.optim.base import OptimizerStep
from ftcluster_train.engine.step_times import StepTimes
from ftcluster_train.engine.tasks.base import Task
from ftcluster_train.io.rank_status import report
from ftcluster_train.patching.kernel_mode import KernelMode
from ftcluster_train.patching.patch_model import kernels_in_use


@dataclass(frozen=True)
class StepBatch:
    """The samples of a step.

    Attributes:
        step: number of the step, counted from 1.
        samples: number of samples in the batch, over all ranks.
        tokens: number of tokens in the batch, over all ranks, without padding.
        by_rank: sum of the sample weights on each rank, for the mean loss over all ranks' samples.
        share: indices of this rank's samples in the training set.
        parts: samples in each micro-batch of this rank.
        dropout_seed: seed for dropout on this rank.
        data_set: name of the data set that all samples come from; "" if the batch may mix several
            data sets.
    """

    step: int
    samples: int
    tokens: int
    by_rank: Sequence[float]
    share: Sequence[int]
    parts: Sequence[Sequence[Sample]]
    dropout_seed: int
    data_set: str = ""


class Batches:
    """The batches of a run; every rank computes the same batches, but reads only its own samples.

    Attributes:
        steps: total number of optimizer steps.
        steps_per_epoch: number of optimizer steps of one pass over the samples.
    """

    def __init__(
        self, job: Job, task: Task, train_set: Samples, world: World, group_by_length: bool = True,
        sizes: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self._job, self._task, self._train_set, self._world = job, task, train_set, world
        self._settings = job.recipe.training
        self._lengths = task.lengths(train_set)
        self._weights: Mapping[int, float] | Sequence[float] | None = task.weights(train_set)
        recipe = job.recipe
        self._sets = MixedSets(
            sizes or [len(train_set)],
            weights_of(recipe.data_sets, recipe.data_mixing) if len(sizes) > 1 else None,
            len(sizes) > 1 and task.separates_sets,
        )
        self._sampler = BatchSampler(
            self._lengths, job.recipe.batch_size, self._settings,
            group_by_length and task.group_by_length, self._sets,
        )  # fmt: skip
        self.steps, self.steps_per_epoch = self._sampler.steps, self._sampler.steps_per_epoch

    def after(self, step: int) -> Iterator[tuple[int, list[int]]]:
        """Yield the number of each step after `step`, and the sample indices of all ranks."""
        return enumerate(itertools.islice(self._sampler, step, None), start=step + 1)

    def read(self, step: int, indices: Sequence[int]) -> StepBatch:
        """Read this rank's samples for a step.

        Args:
            indices: sample indices of all ranks.
        """
        size, weights = self._world.size, self._weights
        share = share_of_rank(indices, self._world.rank, size)
        epoch, task = (step - 1) // self.steps_per_epoch, self._task
        samples = {  # with random masks, the loss needs the weights of all ranks' samples
            i: task.draw(self._train_set[i], i, epoch) for i in (indices if task.draws else share)
        }
        if task.draws:
            weights = {i: len(sample["targets"]) for i, sample in samples.items()}
        data_set = ""
        if self._sets.apart:
            number = bisect_right(self._sets.starts, indices[0]) - 1
            data_set = self._job.recipe.data_sets[number].name
        parts = micro_batches(share, self._settings.gradient_accumulation_steps)
        if self._job.log_samples:
            log_samples(self._job.run_dir, self._world.rank, step, share)
        shares = (share_of_rank(indices, rank, size) for rank in range(size))
        return StepBatch(
            step=step,
            samples=len(indices),
            tokens=sum(self._lengths[i] for i in indices),
            by_rank=[
                sum(weights[i] for i in indices_of_rank) if weights else len(indices_of_rank)
                for indices_of_rank in shares
            ],
            share=share,
            parts=[[samples[i] for i in part] for part in parts],
            dropout_seed=dropout_seed(self._settings.seed, step, self._world.rank),
            data_set=data_set,
        )


def dropout_seed(seed: int, step: int, rank: int) -> int:
    """Return a seed for dropout that differs between ranks and steps but is reproducible."""
    return ((seed * 1_000_003 + step) * 65_537 + rank) % (1 << 64)


def log_samples(run_dir: Path, rank: int, step: int, samples: Sequence[int]) -> None:
    """Append a line to samples/rank-N.jsonl: restart, rank, step, and sample indices.

    Call this function before the all-reduce of the step. Each step that changed the weights is then
    logged on every rank. A step that is repeated after a failure is logged again, so only the last
    line with a step's number counts.
    """
    path = run_dir / "samples" / f"rank-{rank}.jsonl"
    path.parent.mkdir(exist_ok=True)
    restart = int(os.environ.get(RESTART_VARIABLE, "0"))
    line = {"restart": restart, "rank": rank, "step": step, "samples": list(samples)}
    with path.open("ab", buffering=0) as file:  # unbuffered, so that each line is written at once
        file.write(json.dumps(line).encode() + b"\n")


@dataclass(frozen=True)
class StepResult:
    """The results of a step.

    Attributes:
        loss: this rank's contribution to the mean loss; the contributions of all ranks add up to
            the mean loss.
        grad_norm: norm of the summed gradients before clipping. If the norm is not finite, the step
            did not change the weights.
    """

    loss: float
    grad_norm: float


class TrainingStep:
    """Runs training steps: adds the gradients of all micro-batches and updates the weights.

    Args:
        kernels: kernel mode for forward and backward passes.
        times: counters of tokens and of the time for making batches.
        bf16: True to compute forward and backward passes in bf16.

    Attributes:
        kernels_used: names of the kernels that the last micro-batch of the first step used; None
            before that micro-batch, or if this rank had no samples.
    """

    def __init__(
        self, task: Task, model: PreTrainedModel, optimizer: OptimizerStep,
        kernels: KernelMode, times: StepTimes, bf16: bool,
    ) -> None:  # fmt: skip
        self._task, self._model, self._optimizer = task, model, optimizer
        self._kernels, self._times, self._bf16 = kernels, times, bf16
        self.kernels_used: list[str] | None = None

    def run(self, batch: StepBatch) -> StepResult:
        """Take one step; every rank must call this method, even without samples in the batch."""
        torch.manual_seed(batch.dropout_seed)
        data_set = self._task.using(batch.data_set) if batch.data_set else nullcontext()
        with self._optimizer.context, self._kernels, data_set:
            loss = self._add_gradients(batch)
        report(batch.step, "all-reduce")
        with self._optimizer.traffic.part("optimizer"):
            return StepResult(loss, self._optimizer.step())

    def _add_gradients(self, batch: StepBatch) -> float:
        """Run forward and backward passes; the last backward pass all-reduces the gradients."""
        with torch.no_grad():
            self._task.begin_step(batch.parts, self._forward, self._optimizer.traffic)
        total = 0.0
        for number, part in enumerate(batch.parts, start=1):
            loss = self._task.loss(*self._forward(part))
            total += self._backward(loss, batch, last=number == len(batch.parts))
        return total

    def _forward(self, samples: Sequence[Sample]) -> tuple[Any, dict[str, torch.Tensor]]:
        """Return the model's outputs, and the targets for the loss."""
        with self._times:
            inputs, targets = self._task.collate(samples)
        read = (inputs[name] for name in ("input_ids", "decoder_input_ids") if name in inputs)
        self._times.padded_tokens += sum(tokens.numel() for tokens in read)
        with (
            self._optimizer.traffic.part("forward"),
            torch.autocast("cpu", torch.bfloat16, enabled=self._bf16),
        ):
            return call_model(self._model, inputs), targets

    def _backward(self, loss: torch.Tensor, batch: StepBatch, last: bool) -> float:
        """Run the backward pass of a micro-batch, and return its contribution to the mean loss."""
        loss = loss / sum(batch.by_rank)
        if last and self.kernels_used is None:
            self.kernels_used = kernels_in_use(loss, self._model)
        with self._optimizer.traffic.part("backward"):
            self._optimizer.backward(loss, last)
        value: float = loss.item()
        return value


class GradientCacheStep(TrainingStep):
    """A step whose loss compares the vectors (such as text embeddings) of all ranks' samples.

    The gradient of each micro-batch depends on the vectors of all micro-batches. If a step has
    several micro-batches, each micro-batch needs two forward passes. The first pass computes only
    the vectors. The loss over all vectors then yields the gradient of each vector. The second
    forward pass is followed by a backward pass that starts from these gradients (Gao et al. 2021,
    Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup).
    """

    def _add_gradients(self, batch: StepBatch) -> float:
        parts, traffic = batch.parts, self._optimizer.traffic
        everything = self._task.gather_batch([row for part in parts for row in part], traffic)
        if len(parts) < 2:
            # a rank without rows must take part in the exchange too
            nothing = torch.empty(0, self._task.width, requires_grad=True)
            vectors = self._vectors(parts[0]) if parts else nothing
            whole = gather_rows(vectors, everything.counts, traffic)
            return self._backward(self._task.batch_loss(whole, everything), batch, last=True)
        random = torch.get_rng_state()
        cached = [self._vectors(part).detach() for part in parts]
        vectors = torch.cat(cached).requires_grad_()
        whole = gather_rows(vectors, everything.counts, traffic)
        loss = self._task.batch_loss(whole, everything)
        loss.backward()
        gradients = vectors.grad.split(list(map(len, cached)))
        torch.set_rng_state(random)  # use the same dropout masks again
        total, value = 0.0, loss.detach()
        for number, (part, gradient) in enumerate(zip(parts, gradients, strict=True), start=1):
            product = (self._vectors(part) * gradient).sum()
            # a scalar whose value is the loss and whose gradient is that of this micro-batch
            loss = product - product.detach() + value
            total += self._backward(loss, batch, last=number == len(parts))
            value = torch.zeros(())
        return total

    def _vectors(self, samples: Sequence[Sample]) -> torch.Tensor:
        return self._task.vectors(samples, self._forward)


def make_step(
    task: Task, model: PreTrainedModel, optimizer: OptimizerStep, kernels: KernelMode,
    times: StepTimes, bf16: bool,
) -> TrainingStep:  # fmt: skip
    """Return the TrainingStep or GradientCacheStep that a task needs."""
    kind = GradientCacheStep if task.compares_batch else TrainingStep
    return kind(task, model, optimizer, kernels, times, bf16)


def enable_gradient_checkpointing(model: PreTrainedModel, kernels: KernelMode) -> None:
    """Enable gradient checkpointing, which recomputes activations in the backward pass.

    The recomputation must use the same kernels as the forward pass. Because the kernel mode is not
    active in torch's backward pass, the recomputation has to enter the mode again.
    """
    # transformers 5 renamed the method
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    contexts = (nullcontext(), kernels)
    enable({"use_reentrant": False, "context_fn": lambda: contexts})
