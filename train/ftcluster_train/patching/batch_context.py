"""Defines the object with data that patched functions and hooks need besides their arguments.

A model itself calls torch's functions and its own modules, so this package cannot add arguments to
these calls. The code that runs a pass therefore enters a `BatchContext`, and functions and hooks
read the innermost context of their thread. No other channel is allowed: no attribute of a tensor
and no global variable passes data to a kernel (tests/unit/test_hidden_channels.py). Each thread
has its own contexts, because threads may train different models. autograd runs the backward pass of
CPU tensors in the thread that called it, and gradient checkpointing recomputes in the same thread.
"""

import threading
from collections.abc import Callable, Mapping, MutableMapping, Set
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ftcluster_kernels.gradient_sums import GradientSums
from ftcluster_kernels.lora import Adapter
from ftcluster_kernels.norms import RoundedCopies
from ftcluster_kernels.token_rows import TokenRows
from ftcluster_train.patching.exact_heads import exact_parameters
from ftcluster_train.patching.rows import Rows

RowGradients = list[tuple[torch.Tensor, torch.Tensor]]  # indices of rows, and fp32 gradients


@dataclass(frozen=True)
class GradientSinks:
    """The destinations to which parameters' gradients go instead of the attribute `grad`.

    Attributes:
        sums: memory to which the matmul for a gradient adds its result, by weight.
        rows: gradients of single rows for the next optimizer step, by embedding.
    """

    sums: MutableMapping[torch.Tensor, GradientSums] = field(default_factory=dict)
    rows: MutableMapping[torch.Tensor, RowGradients] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class BatchContext:
    """Data about a model's parameters and the batch, for a forward and a backward pass.

    Enter the context for the duration of the pass. Contexts nest; the innermost context is used.

    Attributes:
        fp32_weights: fp32 values that norms and embeddings read, by parameter.
        exact_weights: parameters of layers that are computed in fp32.
        adapters: low-rank adapter of the layer that a weight belongs to, by weight.
        token_rows: trained rows of a frozen embedding or output layer, by weight.
        sinks: destinations of gradients.
        pending_gathers: function that waits for a weight that is still being gathered, by weight;
            call it before the weight is read.
        rows: rows of the batch that layers compute; None means all.
        copies: bf16 copies of the outputs of norms; None if norms keep no copies.
        predicts: True for passes in evaluation mode whose results nothing reads at padding, so that
            encoders skip padding as in training.
    """

    fp32_weights: Mapping[torch.Tensor, torch.Tensor] = field(default_factory=dict)
    exact_weights: Set[torch.Tensor] = frozenset()
    adapters: Mapping[torch.Tensor, Adapter] = field(default_factory=dict)
    token_rows: Mapping[torch.Tensor, TokenRows] = field(default_factory=dict)
    sinks: GradientSinks = field(default_factory=GradientSinks)
    pending_gathers: Mapping[torch.Tensor, Callable[[], None]] = field(default_factory=dict)
    rows: Rows | None = None
    copies: RoundedCopies | None = None
    predicts: bool = False

    def __enter__(self) -> "BatchContext":
        _entered.contexts.append(self)
        return self

    def __exit__(self, *_: Any) -> None:
        # including inner contexts that an interrupted call has not left
        while _entered.contexts.pop() is not self:
            pass


class _Entered(threading.local):
    """The contexts that a thread has entered, the innermost one last."""

    def __init__(self) -> None:
        self.contexts: list[BatchContext] = []


_entered = _Entered()
NOTHING = BatchContext()  # used outside of contexts; its mappings stay empty


def current_context() -> BatchContext | None:
    """Return the innermost context that this thread has entered, or None outside of passes."""
    contexts = _entered.contexts
    return contexts[-1] if contexts else None


def current_rows() -> Rows | None:
    """Return the rows that layers must compute at present; None means all rows."""
    contexts = _entered.contexts
    return contexts[-1].rows if contexts else None


def sums_for(weight: torch.Tensor | None) -> GradientSums | None:
    """Return the memory for a weight's gradient in this pass; None means that autograd keeps it."""
    contexts = _entered.contexts
    return contexts[-1].sinks.sums.get(weight) if contexts and weight is not None else None


def token_rows_for(weight: torch.Tensor | None) -> TokenRows | None:
    """Return the trained rows of a frozen weight in this pass, or None."""
    contexts = _entered.contexts
    return contexts[-1].token_rows.get(weight) if contexts and weight is not None else None


def adapters_of(model: nn.Module) -> dict[torch.Tensor, Adapter]:
    """Return the adapters of a model's layers, from the layers' attribute `adapter`."""
    return {
        layer.weight: layer.adapter
        for layer in model.modules()
        if isinstance(vars(layer).get("adapter"), Adapter)
    }


def token_rows_of(model: nn.Module) -> dict[torch.Tensor, TokenRows]:
    """Return the trained rows of frozen weights, from the layers' attribute `token_rows`."""
    return {
        layer.weight: layer.token_rows
        for layer in model.modules()
        if isinstance(vars(layer).get("token_rows"), TokenRows)
    }


def context_of(model: nn.Module) -> BatchContext:
    """Return a context for passes through a model that no optimizer updates."""
    return BatchContext(
        exact_weights=exact_parameters(model),
        adapters=adapters_of(model),
        token_rows=token_rows_of(model),
    )
