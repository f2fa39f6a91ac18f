"""Computes residuals, norms and embeddings in fp32 although weights are bf16, as under autocast.

With weights in bf16, a model's own code would also keep its residuals in bf16. torch would sum the
gradients of norms and embeddings in bf16, and long sums in bf16 stagnate (bench/notes/upstream.md).
In this module, embeddings and norms return fp32, so the residuals are fp32 too, and only matrix
multiplications get bf16.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from ftcluster_kernels.gradient_sums import GradientSums, unless_hooked
from ftcluster_kernels.linear import linear
from ftcluster_kernels.lora import Adapter, linear_with_adapter
from ftcluster_kernels.nf4 import Nf4Weight, dtype_of, linear_in_nf4
from ftcluster_kernels.norms import fits_norm, norm
from ftcluster_kernels.products import torch_linear
from ftcluster_train.patching.batch_context import (
    NOTHING,
    BatchContext,
    RowGradients,
    current_context,
    token_rows_for,
)
from ftcluster_train.patching.exact_heads import exact_linear
from ftcluster_train.patching.registry import FunctionPatch, always
from ftcluster_train.patching.skipped_rows import rows_read

MANY_ELEMENTS = 1 << 20  # minimum size of a large embedding: 2 MB of gradients in bf16
# the functions at import time, which `ftcluster_train.fast` may have replaced already
torch_layer_norm = functional.layer_norm
torch_embedding = functional.embedding


def _has_fp32_weight(
    _: torch.Tensor, __: Sequence[int], weight: torch.Tensor | None = None, *___: Any, **____: Any
) -> str | None:
    """Accept weights that have fp32 values in the current context."""
    return None if weight in (current_context() or NOTHING).fp32_weights else ""


def layer_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """Compute `torch.nn.functional.layer_norm` with input and weight in fp32."""
    input = input.float()
    if (
        weight is not None
        and len(normalized_shape) == 1
        and fits_norm(weight, bias, input.shape[-1])
    ):
        copies = (current_context() or NOTHING).copies
        return norm(input, weight, bias, eps, centered=True, copies=copies)
    return torch_layer_norm(input, normalized_shape, weight, bias, eps)


LAYER_NORM = FunctionPatch(functional, torch_layer_norm, _has_fp32_weight, layer_norm)


def _is_plain_embedding(
    _: torch.Tensor,
    weight: torch.Tensor,
    __: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,  # noqa: ARG001 - has no meaning without max_norm
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
    **___: Any,
) -> str | None:
    """Accept bf16 or large weights, or weights with trained rows.

    Embeddings with max_norm, scaling or sparse gradients are not accepted.
    """
    ours = weight.dtype == torch.bfloat16 or _row_gradients(weight) is not None
    ours = ours or token_rows_for(weight) is not None
    return None if ours and max_norm is None and not scale_grad_by_freq and not sparse else ""


def embedding(
    input: torch.Tensor, weight: torch.Tensor, padding_idx: int | None = None, *_: Any, **__: Any
) -> torch.Tensor:
    """Compute `torch.nn.functional.embedding` in fp32."""
    padding = -1 if padding_idx is None else padding_idx % len(weight)
    values = (current_context() or NOTHING).fp32_weights.get(weight, weight)
    if (rows := token_rows_for(weight)) is not None:
        rows.write_into(weight)
        rows.write_into(values)
    output: torch.Tensor = _Embedding.apply(weight, values, input, padding, _row_gradients(weight))
    return output if rows is None else rows.of_lookup(output, input, padding)


EMBEDDING = FunctionPatch(functional, torch_embedding, _is_plain_embedding, embedding)


class _Embedding(torch.autograd.Function):  # type: ignore[misc]
    """A lookup of rows in fp32; the weight's gradient has the weight's dtype.

    Gradients of equal tokens are summed in fp32. If `row_gradients` is set, the gradients of single
    rows are appended to it instead, because a batch uses only few rows of a large vocabulary.
    """

    @staticmethod
    def forward(
        ctx: Any,
        weight: torch.Tensor,
        values: torch.Tensor,
        tokens: torch.Tensor,
        padding: int,
        row_gradients: RowGradients | None,
    ) -> torch.Tensor:
        ctx.save_for_backward(tokens)
        ctx.weight, ctx.padding, ctx.row_gradients = weight, padding, row_gradients
        return values[tokens].float()

    @staticmethod
    def backward(
        ctx: Any, grad_output: torch.Tensor
    ) -> tuple[torch.Tensor | None, None, None, None, None]:
        (tokens,) = ctx.saved_tensors
        weight = ctx.weight
        present, places = torch.unique(tokens, return_inverse=True)
        sums = torch.zeros(len(present), weight.shape[1], dtype=torch.float32, device="cpu")
        sums.index_add_(0, places.flatten(), grad_output.reshape(-1, weight.shape[1]))
        sums[present == ctx.padding] = 0
        if ctx.row_gradients is not None:
            ctx.row_gradients.append((present, sums))
            return None, None, None, None, None
        grad_weight = torch.zeros_like(weight)
        grad_weight[present] = sums.to(weight.dtype)
        return grad_weight, None, None, None, None


def _row_gradients(weight: torch.Tensor) -> RowGradients | None:
    """Return the list for gradients of single rows; None if the weight gets a whole gradient."""
    if weight.numel() < MANY_ELEMENTS:
        return None
    return (current_context() or NOTHING).sinks.rows.get(weight)


def _in_dtype_of(weight: torch.Tensor, input: torch.Tensor, context: BatchContext) -> torch.Tensor:
    """Return a layer's input in bf16 if its weight is in bf16."""
    if input.dtype != torch.float32 or dtype_of(weight) != torch.bfloat16:
        return input
    rounded = None if context.copies is None else context.copies.of(input)
    return input.to(torch.bfloat16) if rounded is None else rounded


class Linear:
    """The function for linear layers; it reads the rounded copy of a norm's output if there is one.

    The layers for query, key and value have the same input, which autocast would round three times.

    Args:
        head: weight of a layer that must return its input; None if there is no such layer.
        head_factor: factor by which that layer multiplies its input.
    """

    def __init__(self, head: torch.Tensor | None = None, head_factor: float = 1.0) -> None:
        self._head, self._head_factor = head, head_factor

    def patches(self) -> tuple[FunctionPatch, FunctionPatch]:
        """Return the patches of torch's function and of the function that GPT-2's layers use."""
        return (
            FunctionPatch(functional, torch_linear, always, self),
            FunctionPatch(torch, torch.addmm, _is_layer, self._addmm),
        )

    def __call__(
        self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Compute torch's linear function."""
        context = current_context() or NOTHING
        adapter = context.adapters.get(weight) if context.adapters else None
        rows = context.token_rows.get(weight) if context.token_rows else None
        if rows is not None:
            rows.write_into(weight)
        output = self._output(context, input, weight, bias, context.sinks.sums.get(weight), adapter)
        return output if rows is None or weight is self._head else rows.of_logits(output, input)

    def _output(
        self,
        context: BatchContext,
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        sums: GradientSums | None,
        adapter: Adapter | None,
    ) -> torch.Tensor:
        if weight is self._head:
            return input if self._head_factor == 1 else input * self._head_factor
        # check for an empty set first, because hashing a tensor calls a slow Python method
        if context.exact_weights and weight in context.exact_weights:
            return exact_linear(input, weight, bias)
        input = _in_dtype_of(weight, input, context)
        if adapter is not None:
            of_factors = context.sinks.sums.get(adapter.down), context.sinks.sums.get(adapter.up)
            return linear_with_adapter(input, weight, bias, adapter, of_factors)
        if type(weight) is Nf4Weight:
            return linear_in_nf4(input, weight, bias)
        return linear(input, weight, bias, rows_read(input), sums)

    def _addmm(self, bias: torch.Tensor, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        context = current_context() or NOTHING
        sums = unless_hooked(context.sinks.sums.get(weight), weight)
        adapter = context.adapters.get(weight) if context.adapters else None
        return self._output(context, rows, weight.T, bias, sums, adapter)


def _is_layer(
    bias: torch.Tensor, _: torch.Tensor, weight: torch.Tensor, **options: Any
) -> str | None:
    """Accept matmuls of a layer: a bias of one dimension, and a weight in bf16 or with adapter."""
    if options or bias.ndim != 1:
        return ""
    ours = weight.dtype == torch.bfloat16 or weight in (current_context() or NOTHING).adapters
    return None if ours else ""
