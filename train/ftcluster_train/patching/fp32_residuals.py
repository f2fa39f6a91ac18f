"""Residuals, norms and embeddings in fp32 with weights in bf16, as under autocast.

With weights in bf16 a model's own code would keep its residuals in bf16 as well, and torch would
sum the gradients of norms and embeddings in bf16, where long sums stagnate
(bench/notes/upstream.md). Here embeddings and norms return fp32, so the residuals that are added to
them are fp32 too, and only matrix products get bf16.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from ftcluster_kernels.gradient_sums import sums_of
from ftcluster_kernels.linear import linear
from ftcluster_kernels.lora import linear_with_adapter
from ftcluster_kernels.nf4 import dtype_of, linear_in_nf4
from ftcluster_kernels.norms import fits_norm, norm, rounded_output
from ftcluster_kernels.products import torch_linear
from ftcluster_train.patching.exact_heads import exact_linear, is_exact
from ftcluster_train.patching.registry import FunctionPatch, always
from ftcluster_train.patching.skipped_rows import rows_read

MANY_ELEMENTS = 1 << 20  # of an embedding: 2 MB of gradients in bf16
# also where `ftcluster_train.fast` has replaced them
torch_layer_norm = functional.layer_norm
torch_embedding = functional.embedding


def _has_master_weight(
    _: torch.Tensor, __: Sequence[int], weight: torch.Tensor | None = None, *___: Any, **____: Any
) -> str | None:
    """Weights that the training keeps in fp32 beside their copies in bf16."""
    return None if hasattr(weight, "master_weight") else ""


def layer_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """As `torch.nn.functional.layer_norm` of the input in fp32, as the weight is."""
    input = input.float()
    if (
        weight is not None
        and len(normalized_shape) == 1
        and fits_norm(weight, bias, input.shape[-1])
    ):
        return norm(input, weight, bias, eps, centered=True)
    return torch_layer_norm(input, normalized_shape, weight, bias, eps)


LAYER_NORM = FunctionPatch(functional, torch_layer_norm, _has_master_weight, layer_norm)


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
    """Weights in bf16 or of large tables, without max_norm, scaling and sparse gradients."""
    ours = weight.dtype == torch.bfloat16 or _takes_rows(weight)
    return None if ours and max_norm is None and not scale_grad_by_freq and not sparse else ""


def embedding(
    input: torch.Tensor, weight: torch.Tensor, padding_idx: int | None = None, *_: Any, **__: Any
) -> torch.Tensor:
    """As `torch.nn.functional.embedding`, in fp32."""
    padding = -1 if padding_idx is None else padding_idx % len(weight)
    master_weight = getattr(weight, "master_weight", weight)
    output: torch.Tensor = _Embedding.apply(weight, master_weight, input, padding)
    return output


EMBEDDING = FunctionPatch(functional, torch_embedding, _is_plain_embedding, embedding)


class _Embedding(torch.autograd.Function):  # type: ignore[misc]
    """Rows of the fp32 master weight; the gradient belongs to the weight, in its dtype.

    Gradients of equal tokens are summed in fp32. Those of a large vocabulary go to the weight's
    `row_gradients`, where GradientBuckets takes them: a batch has few of its rows.
    """

    @staticmethod
    def forward(
        ctx: Any,
        weight: torch.Tensor,
        master_weight: torch.Tensor,
        tokens: torch.Tensor,
        padding: int,
    ) -> torch.Tensor:
        ctx.save_for_backward(tokens)
        ctx.weight, ctx.padding = weight, padding
        return master_weight[tokens].float()

    @staticmethod
    def backward(
        ctx: Any, grad_output: torch.Tensor
    ) -> tuple[torch.Tensor | None, None, None, None]:
        (tokens,) = ctx.saved_tensors
        weight = ctx.weight
        present, places = torch.unique(tokens, return_inverse=True)
        sums = torch.zeros(len(present), weight.shape[1], dtype=torch.float32, device="cpu")
        sums.index_add_(0, places.flatten(), grad_output.reshape(-1, weight.shape[1]))
        sums[present == ctx.padding] = 0
        if _takes_rows(weight):
            weight.row_gradients.append((present, sums))
            return None, None, None, None
        grad_weight = torch.zeros_like(weight)
        grad_weight[present] = sums.to(weight.dtype)
        return grad_weight, None, None, None


def _takes_rows(weight: torch.Tensor) -> bool:
    return weight.numel() >= MANY_ELEMENTS and hasattr(weight, "row_gradients")


class Linear:
    """Linear layers, which read the rounded copy of a norm's output where it has one.

    Query, key and value have the same input, which autocast would round three times.

    Args:
        head: the weight of a layer that is to return its input.
        head_factor: what that layer multiplies its input by.
    """

    def __init__(self, head: torch.Tensor | None = None, head_factor: float = 1.0) -> None:
        self._head, self._head_factor = head, head_factor

    def patches(self) -> tuple[FunctionPatch, FunctionPatch]:
        """The patches of torch's function and of the one by which GPT-2 computes its layers."""
        return (
            FunctionPatch(functional, torch_linear, always, self),
            FunctionPatch(torch, torch.addmm, _is_layer, self._addmm),
        )

    def __call__(
        self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """As torch's."""
        if weight is self._head:
            return input if self._head_factor == 1 else input * self._head_factor
        if is_exact(weight):
            return exact_linear(input, weight, bias)
        if input.dtype == torch.float32 and dtype_of(weight) == torch.bfloat16:
            rounded = rounded_output(input)
            input = input.to(torch.bfloat16) if rounded is None else rounded
        adapter = getattr(weight, "adapter", None)
        if adapter is not None:
            return linear_with_adapter(input, weight, bias, adapter)
        if hasattr(weight, "nf4"):
            return linear_in_nf4(input, weight, bias)
        return linear(input, weight, bias, rows_read(input))

    def _addmm(self, bias: torch.Tensor, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        turned = weight.T
        turned.gradient_sums = sums_of(weight)
        return self(rows, turned, bias)


def _is_layer(
    bias: torch.Tensor, _: torch.Tensor, weight: torch.Tensor, **options: Any
) -> str | None:
    """Products of a layer: a bias of one dimension and a weight in bf16."""
    return "" if options or bias.ndim != 1 or weight.dtype != torch.bfloat16 else None
