"""Residuals, norms and embeddings in fp32 with weights in bf16, as under autocast.

With weights in bf16 a model's own code would keep its residuals in bf16 as well, and torch would
sum the gradients of norms and embeddings in bf16, where long sums stagnate (docs/upstream.md). Here
embeddings and norms return fp32, so the residuals that are added to them are fp32 too, and only
matrix products get bf16.
"""

from typing import Any

import torch
from torch.nn import functional

from ftcluster_train.kernels.linear import linear
from ftcluster_train.kernels.low_rank import linear_with_adapter
from ftcluster_train.kernels.nf4 import dtype_of, linear_in_nf4
from ftcluster_train.kernels.norm import is_fit, norm, rounded_output
from ftcluster_train.kernels.private_torch import version_of

MANY_ELEMENTS = 1 << 20  # of an embedding: 2 MB of gradients in bf16


def layer_norm(
    input: torch.Tensor,
    normalized_shape: list[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """Overrides `torch.nn.functional.layer_norm`."""
    if weight is not None and hasattr(weight, "master_weight"):  # so the weight is fp32
        input = input.float()
        if len(normalized_shape) == 1 and is_fit(weight, bias, input.shape[-1]):
            return norm(input, weight, bias, eps, centered=True)
    return functional.layer_norm(input, normalized_shape, weight, bias, eps)


def embedding(
    input: torch.Tensor,
    weight: torch.Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> torch.Tensor:
    """Overrides `torch.nn.functional.embedding`."""
    ours = weight.dtype == torch.bfloat16 or _takes_rows(weight)
    if not ours or max_norm is not None or scale_grad_by_freq or sparse:
        return functional.embedding(
            input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse
        )
    padding = -1 if padding_idx is None else padding_idx % len(weight)
    master_weight = getattr(weight, "master_weight", weight)
    output: torch.Tensor = _Embedding.apply(weight, master_weight, input, padding)
    return output


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
        sums = torch.zeros(len(present), weight.shape[1])
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
    """Overrides `torch.nn.functional.linear`; rounds an input of several layers to bf16 once.

    Query, key and value have the same input, which autocast would round three times.

    Args:
        head: the weight of a layer that is to return its input.
    """

    def __init__(self, head: torch.Tensor | None = None) -> None:
        self._head = head
        self.clear()

    def clear(self) -> None:
        """Free the last input and its rounded copy."""
        self._input: torch.Tensor | None = None
        self._rounded: torch.Tensor | None = None
        self._version = 0

    def __call__(
        self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """As torch's."""
        if weight is self._head:
            return input
        if input.dtype == torch.float32 and dtype_of(weight) == torch.bfloat16:
            input = self._round(input)
        adapter = getattr(weight, "adapter", None)
        if adapter is not None:
            return linear_with_adapter(input, weight, bias, adapter)
        if hasattr(weight, "nf4"):
            return linear_in_nf4(input, weight, bias)
        return linear(input, weight, bias)

    def addmm(
        self, bias: torch.Tensor, rows: torch.Tensor, weight: torch.Tensor, **options: Any
    ) -> torch.Tensor:
        """Overrides `torch.addmm`, by which GPT-2 computes its layers."""
        if options or bias.ndim != 1 or weight.dtype != torch.bfloat16:
            return torch.addmm(bias, rows, weight, **options)
        return self(rows, weight.T, bias)

    def _round(self, input: torch.Tensor) -> torch.Tensor:
        if input.is_inference():  # has no version, so a change in place would not show
            return input.to(torch.bfloat16)
        rounded = rounded_output(input)
        if rounded is not None:
            return rounded
        if self._rounded is None or input is not self._input or self._version != version_of(input):
            self._input, self._version = input, version_of(input)
            self._rounded = input.to(torch.bfloat16)
        return self._rounded
