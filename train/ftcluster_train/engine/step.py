"""One optimizer step: forward and backward passes of a batch, all-reduce, clipping, update."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from ftcluster_train.comm.rows import gather_rows
from ftcluster_train.engine.batches import StepBatch
from ftcluster_train.engine.data.token_store import Sample
from ftcluster_train.engine.models import call_model
from ftcluster_train.engine.optim.base import OptimizerStep
from ftcluster_train.engine.step_times import StepTimes
from ftcluster_train.engine.tasks.base import Task
from ftcluster_train.engine.tasks.in_batch_negatives import gather_texts
from ftcluster_train.engine.tasks.sentence_similarity import SentenceSimilarityTask
from ftcluster_train.io.rank_status import report
from ftcluster_train.patching.in_use import kernels_in_use
from ftcluster_train.patching.kernel_mode import KernelMode


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


class Step:
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
        with self._kernels:
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
        self._times.padded_tokens += inputs["input_ids"].numel()
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


class GradientCacheStep(Step):
    """A step whose loss compares the embeddings of all ranks' texts with each other.

    The gradient of each micro-batch depends on all others. So several are computed twice, at first
    for their embeddings alone, whose gradients are kept (Gao et al. 2021, Scaling Deep Contrastive
    Learning Batch Size under Memory Limited Setup).
    """

    _task: SentenceSimilarityTask

    def _add_gradients(self, batch: StepBatch) -> float:
        parts, traffic = batch.parts, self._optimizer.traffic
        texts = gather_texts([row for part in parts for row in part], traffic)
        if len(parts) < 2:
            # the others need the answer of a rank without a row
            nothing = torch.empty(0, self._task.width, requires_grad=True)
            embeddings = self._embed(parts[0]) if parts else nothing
            whole = gather_rows(embeddings, texts.counts, traffic)
            return self._backward(self._task.batch_loss(whole, texts), batch, last=True)
        random = torch.get_rng_state()
        cached = [self._embed(part).detach() for part in parts]
        embeddings = torch.cat(cached).requires_grad_()
        whole = gather_rows(embeddings, texts.counts, traffic)
        loss = self._task.batch_loss(whole, texts)
        loss.backward()
        gradients = embeddings.grad.split(list(map(len, cached)))
        torch.set_rng_state(random)  # the same dropout again
        total, value = 0.0, loss.detach()
        for number, (part, gradient) in enumerate(zip(parts, gradients, strict=True), start=1):
            product = (self._embed(part) * gradient).sum()
            # a value of the batch's loss with the gradient of the part
            loss = product - product.detach() + value
            total += self._backward(loss, batch, last=number == len(parts))
            value = torch.zeros(())
        return total

    def _embed(self, rows: Sequence[Sample]) -> torch.Tensor:
        """The embeddings of rows' texts, of length 1, shape (texts, width)."""
        groups, places = self._task.group_texts(rows)
        pooled = [self._task.pool(*self._forward(group)) for group in groups]
        return functional.normalize(torch.cat(pooled), dim=-1)[places]


def make_step(
    task: Task, model: PreTrainedModel, optimizer: OptimizerStep, kernels: KernelMode,
    times: StepTimes, bf16: bool,
) -> Step:  # fmt: skip
    """The step for a task; arguments as in Step."""
    compares = isinstance(task, SentenceSimilarityTask)
    kind = GradientCacheStep if compares else Step
    return kind(task, model, optimizer, kernels, times, bf16)


def enable_gradient_checkpointing(model: PreTrainedModel, kernels: KernelMode) -> None:
    """Recompute activations in the backward pass, with the same kernels as in the forward pass.

    The backward pass is one function for torch, so `kernels` does not see the calls inside it.
    """
    # transformers 5 has another name for it
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    contexts = (nullcontext(), kernels)
    enable({"use_reentrant": False, "context_fn": lambda: contexts})
