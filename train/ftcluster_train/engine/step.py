"""The batches of a training, and one optimizer step: passes, all-reduce, clipping, update."""

import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from ftcluster_common.protocol.job import Job
from ftcluster_common.protocol.launch import RESTART_VARIABLE
from ftcluster_train.comm.gather_rows import gather_rows
from ftcluster_train.comm.world import World
from ftcluster_train.engine.data.sampler import BatchSampler, micro_batches, share_of_rank
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
        samples: number of samples of all ranks.
        tokens: number of tokens of all ranks, without padding.
        by_rank: weight of each rank's samples in the loss, which is a mean over all samples.
        share: numbers of this rank's samples.
        parts: this rank's samples of each micro-batch.
        dropout_seed: seed of this rank's dropout.
    """

    step: int
    samples: int
    tokens: int
    by_rank: Sequence[float]
    share: Sequence[int]
    parts: Sequence[Sequence[Sample]]
    dropout_seed: int


class Batches:
    """The batches of a training: every rank computes the same batches, and reads its share.

    Attributes:
        steps: number of optimizer steps of the whole training.
        steps_per_epoch: number of optimizer steps of one pass over the samples.
    """

    def __init__(
        self, job: Job, task: Task, train_set: Samples, world: World, group_by_length: bool = True
    ) -> None:
        self._job, self._task, self._train_set, self._world = job, task, train_set, world
        self._settings = job.recipe.training
        self._lengths = task.lengths(train_set)
        self._weights: Mapping[int, float] | Sequence[float] | None = task.weights(train_set)
        self._sampler = BatchSampler(
            self._lengths, job.recipe.batch_size, self._settings,
            group_by_length and task.group_by_length,
        )  # fmt: skip
        self.steps, self.steps_per_epoch = self._sampler.steps, self._sampler.steps_per_epoch

    def after(self, step: int) -> Iterator[tuple[int, list[int]]]:
        """Return the numbers of the following steps, each with the samples of all ranks."""
        return enumerate(itertools.islice(self._sampler, step, None), start=step + 1)

    def read(self, step: int, indices: Sequence[int]) -> StepBatch:
        """Return this rank's samples of a step."""
        size, weights = self._world.size, self._weights
        share = share_of_rank(indices, self._world.rank, size)
        epoch, task = (step - 1) // self.steps_per_epoch, self._task
        samples = {  # with random samples, each rank needs the weights of the other ranks' samples
            i: task.draw(self._train_set[i], i, epoch) for i in (indices if task.draws else share)
        }
        if task.draws:
            weights = {i: len(sample["learned"]) for i, sample in samples.items()}
        parts = micro_batches(share, self._settings.gradient_accumulation_steps)
        if self._job.log_samples:
            log_samples(self._job.run_dir, self._world.rank, step, share)
        shares = (share_of_rank(indices, rank, size) for rank in range(size))
        return StepBatch(
            step=step,
            samples=len(indices),
            tokens=sum(self._lengths[i] for i in indices),
            by_rank=[sum(weights[i] for i in one) if weights else len(one) for one in shares],
            share=share,
            parts=[[samples[i] for i in part] for part in parts],
            dropout_seed=dropout_seed(self._settings.seed, step, self._world.rank),
        )


def dropout_seed(seed: int, step: int, rank: int) -> int:
    """Return a seed that differs between ranks and steps, and is the same in each run."""
    return ((seed * 1_000_003 + step) * 65_537 + rank) % (1 << 64)


def log_samples(run_dir: Path, rank: int, step: int, samples: Sequence[int]) -> None:
    """Append one line to samples/rank-N.jsonl: restart, rank, step, and the samples' numbers.

    Call it before the step's all-reduce: once a step has changed the weights, each rank has logged
    it. A step that a failure interrupted is logged again when it is repeated; the last line counts.
    """
    path = run_dir / "samples" / f"rank-{rank}.jsonl"
    path.parent.mkdir(exist_ok=True)
    restart = int(os.environ.get(RESTART_VARIABLE, "0"))
    line = {"restart": restart, "rank": rank, "step": step, "samples": list(samples)}
    with path.open("ab", buffering=0) as file:  # writes a whole line, or nothing
        file.write(json.dumps(line).encode() + b"\n")


@dataclass(frozen=True)
class StepResult:
    """The results of a step.

    Attributes:
        loss: this rank's part of the mean over all ranks' samples.
        grad_norm: norm of all ranks' gradients before clipping; if it is not finite, the weights
            did not change.
    """

    loss: float
    grad_norm: float


class TrainingStep:
    """Adds up the gradients of a batch's micro-batches and updates the weights.

    Args:
        kernels: kernel mode for forward and backward passes.
        times: counters of tokens, and of the time for making batches.
        bf16: True if passes compute in bf16.

    Attributes:
        kernels_used: kernels in the last micro-batch of the first step, or None.
    """

    def __init__(
        self, task: Task, model: PreTrainedModel, optimizer: OptimizerStep,
        kernels: KernelMode, times: StepTimes, bf16: bool,
    ) -> None:  # fmt: skip
        self._task, self._model, self._optimizer = task, model, optimizer
        self._kernels, self._times, self._bf16 = kernels, times, bf16
        self.kernels_used: list[str] | None = None

    def run(self, batch: StepBatch) -> StepResult:
        """Take one step; every rank calls it, even if it has no sample in the batch."""
        torch.manual_seed(batch.dropout_seed)
        with self._optimizer.context, self._kernels:
            loss = self._add_gradients(batch)
        report(batch.step, "all-reduce")
        return StepResult(loss, self._optimizer.step())

    def _add_gradients(self, batch: StepBatch) -> float:
        """Run forward and backward passes; the last backward pass all-reduces the gradients."""
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
        with torch.autocast("cpu", torch.bfloat16, enabled=self._bf16):
            return call_model(self._model, inputs), targets

    def _backward(self, loss: torch.Tensor, batch: StepBatch, last: bool) -> float:
        """Add the gradients of a micro-batch and return its part of the mean loss."""
        loss = loss / sum(batch.by_rank)
        if last and self.kernels_used is None:
            self.kernels_used = kernels_in_use(loss, self._model)
        self._optimizer.backward(loss, last)
        value: float = loss.item()
        return value


class GradientCacheStep(TrainingStep):
    """A step whose loss compares vectors of all ranks' samples, such as embeddings of their texts.

    The gradient of each micro-batch depends on all others. So several micro-batches are computed
    twice, the first time only for their vectors, whose gradients are kept (Gao et al. 2021, Scaling
    Deep Contrastive Learning Batch Size under Memory Limited Setup).
    """

    def _add_gradients(self, batch: StepBatch) -> float:
        parts, traffic = batch.parts, self._optimizer.traffic
        everything = self._task.gather_batch([row for part in parts for row in part], traffic)
        if len(parts) < 2:
            # the other ranks wait for the vectors of a rank without a row
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
        torch.set_rng_state(random)  # repeats the dropout masks
        total, value = 0.0, loss.detach()
        for number, (part, gradient) in enumerate(zip(parts, gradients, strict=True), start=1):
            product = (self._vectors(part) * gradient).sum()
            # a scalar that has the value of the batch's loss and the gradient of the part
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
    """Return the step for a task; see TrainingStep for the arguments."""
    kind = GradientCacheStep if task.compares_batch else TrainingStep
    return kind(task, model, optimizer, kernels, times, bf16)


def enable_gradient_checkpointing(model: PreTrainedModel, kernels: KernelMode) -> None:
    """Recompute activations in the backward pass, with the same kernels as in the forward pass.

    The backward pass is one function for torch, so `kernels` does not see the calls inside it.
    """
    # transformers 5 renamed the method
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    contexts = (nullcontext(), kernels)
    enable({"use_reentrant": False, "context_fn": lambda: contexts})
