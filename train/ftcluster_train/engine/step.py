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
        step: its number, from 1.
        samples: how many all ranks take.
        tokens: of all ranks, without padding.
        by_rank: what the samples of each rank count in the loss, which is a mean over all.
        share: the numbers of this rank's samples.
        parts: this rank's samples, by micro-batch.
        dropout_seed: of this rank.
    """

    step: int
    samples: int
    tokens: int
    by_rank: Sequence[float]
    share: Sequence[int]
    parts: Sequence[Sequence[Sample]]
    dropout_seed: int


class Batches:
    """Every rank computes the same batches, and reads its share.

    Attributes:
        steps: optimizer steps of the whole training.
        steps_per_epoch: of one pass over the samples.
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
        """The numbers of the following steps, and of all ranks' samples in them."""
        return enumerate(itertools.islice(self._sampler, step, None), start=step + 1)

    def read(self, step: int, indices: Sequence[int]) -> StepBatch:
        """This rank's samples of a step."""
        size, weights = self._world.size, self._weights
        share = share_of_rank(indices, self._world.rank, size)
        epoch, task = (step - 1) // self.steps_per_epoch, self._task
        samples = {  # each rank has to know what those of the others count
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
    """Each rank and step has another dropout mask, the same one in each run."""
    return ((seed * 1_000_003 + step) * 65_537 + rank) % (1 << 64)


def log_samples(run_dir: Path, rank: int, step: int, samples: Sequence[int]) -> None:
    """Append one line to samples/rank-N.jsonl: restart, rank, step, and the samples' numbers.

    Call it before the step's all-reduce: once a step has changed the weights, each rank has logged
    it. A step that a failure cut short is logged again when it is repeated; the last one counts.
    """
    path = run_dir / "samples" / f"rank-{rank}.jsonl"
    path.parent.mkdir(exist_ok=True)
    restart = int(os.environ.get(RESTART_VARIABLE, "0"))
    line = {"restart": restart, "rank": rank, "step": step, "samples": list(samples)}
    with path.open("ab", buffering=0) as file:  # a whole line, or nothing
        file.write(json.dumps(line).encode() + b"\n")


@dataclass(frozen=True)
class StepResult:
    """What a step has computed.

    Attributes:
        loss: this rank's part of the mean over all ranks' samples.
        grad_norm: of all ranks' gradients, before clipping; if it is not finite, the weights are
            what they were.
    """

    loss: float
    grad_norm: float


class TrainingStep:
    """Adds up the gradients of a batch's micro-batches and updates the weights.

    Args:
        kernels: active in forward and backward passes.
        times: counts tokens, and the time that making batches takes.
        bf16: whether passes compute in bf16.

    Attributes:
        kernels_used: in the last micro-batch of the first step.
    """

    def __init__(
        self, task: Task, model: PreTrainedModel, optimizer: OptimizerStep,
        kernels: KernelMode, times: StepTimes, bf16: bool,
    ) -> None:  # fmt: skip
        self._task, self._model, self._optimizer = task, model, optimizer
        self._kernels, self._times, self._bf16 = kernels, times, bf16
        self.kernels_used: list[str] | None = None

    def run(self, batch: StepBatch) -> StepResult:
        """Take one step; every rank calls it, also with a batch in which it has no sample."""
        torch.manual_seed(batch.dropout_seed)
        with self._optimizer.context, self._kernels:
            loss = self._add_gradients(batch)
        report(batch.step, "all-reduce")
        return StepResult(loss, self._optimizer.step())

    def _add_gradients(self, batch: StepBatch) -> float:
        """Forward and backward passes; gradients are all-reduced during the last one."""
        total = 0.0
        for number, part in enumerate(batch.parts, start=1):
            loss = self._task.loss(*self._forward(part))
            total += self._backward(loss, batch, last=number == len(batch.parts))
        return total

    def _forward(self, samples: Sequence[Sample]) -> tuple[Any, dict[str, torch.Tensor]]:
        """The model's outputs, and the targets for the loss."""
        with self._times:
            inputs, targets = self._task.collate(samples)
        read = (inputs[name] for name in ("input_ids", "decoder_input_ids") if name in inputs)
        self._times.padded_tokens += sum(tokens.numel() for tokens in read)
        with torch.autocast("cpu", torch.bfloat16, enabled=self._bf16):
            return call_model(self._model, inputs), targets

    def _backward(self, loss: torch.Tensor, batch: StepBatch, last: bool) -> float:
        """Add the gradients of a micro-batch; returns its part of the mean."""
        loss = loss / sum(batch.by_rank)
        if last and self.kernels_used is None:
            self.kernels_used = kernels_in_use(loss, self._model)
        self._optimizer.backward(loss, last)
        value: float = loss.item()
        return value


class GradientCacheStep(TrainingStep):
    """A step whose loss compares vectors of all ranks' samples, such as embeddings of their texts.

    The gradient of each micro-batch depends on all others. So several are computed twice, at first
    for their vectors alone, whose gradients are kept (Gao et al. 2021, Scaling Deep Contrastive
    Learning Batch Size under Memory Limited Setup).
    """

    def _add_gradients(self, batch: StepBatch) -> float:
        parts, traffic = batch.parts, self._optimizer.traffic
        everything = self._task.gather_batch([row for part in parts for row in part], traffic)
        if len(parts) < 2:
            # the others need the answer of a rank without a row
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
        torch.set_rng_state(random)  # the same dropout again
        total, value = 0.0, loss.detach()
        for number, (part, gradient) in enumerate(zip(parts, gradients, strict=True), start=1):
            product = (self._vectors(part) * gradient).sum()
            # a value of the batch's loss with the gradient of the part
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
    """Return the step for a task, with the arguments of TrainingStep."""
    kind = GradientCacheStep if task.compares_batch else TrainingStep
    return kind(task, model, optimizer, kernels, times, bf16)


def enable_gradient_checkpointing(model: PreTrainedModel, kernels: KernelMode) -> None:
    """Recompute activations in the backward pass, with the same kernels as in the forward pass.

    The backward pass is one function for torch, so `kernels` does not see the calls inside it.
    """
    # transformers 5 has another name for it
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    contexts = (nullcontext(), kernels)
    enable({"use_reentrant": False, "context_fn": lambda: contexts})
