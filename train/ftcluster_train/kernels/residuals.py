"""Residuals, norms and embeddings in fp32, over weights in bf16, as under autocast.

With weights in bf16 a model's own code would keep its residuals in bf16 as well, and torch would
sum the gradients of norms and embeddings in bf16, where long sums stagnate (docs/upstream.md). Here
embeddings and norms give fp32, so that what is added to them is fp32 too, and only the products get
bf16.
"""

from typing import Any

import torch
from torch.nn import functional


def layer_norm(
    input: torch.Tensor,
    normalized_shape: list[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """Takes the place of `torch.nn.functional.layer_norm`."""
    if hasattr(weight, "master"):  # one of FlatWeights', in fp32
        input = input.float()
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
    """Takes the place of `torch.nn.functional.embedding`."""
    if weight.dtype != torch.bfloat16 or max_norm is not None or scale_grad_by_freq or sparse:
        return functional.embedding(
            input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse
        )
    padding = -1 if padding_idx is None else padding_idx % len(weight)
    master = getattr(weight, "master", weight)
    found: torch.Tensor = _Embedding.apply(weight, master, input, padding)
    return found


class _Embedding(torch.autograd.Function):  # type: ignore[misc]
    """Rows of a matrix, whose gradients are summed over equal tokens before they are rounded.

    The rows are the master's, in fp32; the gradient is that of the weight.
    """

    @staticmethod
    def forward(
        ctx: Any, weight: torch.Tensor, master: torch.Tensor, tokens: torch.Tensor, padding: int
    ) -> torch.Tensor:
        ctx.save_for_backward(tokens)
        ctx.shape, ctx.dtype, ctx.padding = weight.shape, weight.dtype, padding
        return master[tokens].float()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (tokens,) = ctx.saved_tensors
        present, places = torch.unique(tokens, return_inverse=True)
        sums = torch.zeros(len(present), ctx.shape[1])
        sums.index_add_(0, places.flatten(), gradient.reshape(-1, ctx.shape[1]))
        sums[present == ctx.padding] = 0
        grad_weight = torch.zeros(ctx.shape, dtype=ctx.dtype)
        grad_weight[present] = sums.to(ctx.dtype)
        return grad_weight, None, None, None


class Linear:
    """Takes the place of `torch.nn.functional.linear`; rounds an input of several products once.

    Autocast would round the input of each: a query's, a key's and a value's are the same.

    Args:
        head: the weight of a layer that is to give back what it gets.
    """

    def __init__(self, head: torch.Tensor | None = None) -> None:
        self._head = head
        self.forget()

    def forget(self) -> None:
        """Free what is kept of the last input."""
        self._input: Any = None
        self._rounded: Any = None
        self._version = 0

    def __call__(
        self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """As torch's."""
        if weight is self._head:
            return input
        if input.dtype == torch.float32 and weight.dtype == torch.bfloat16:
            input = self._round(input)
        return functional.linear(input, weight, bias)

    def _round(self, input: torch.Tensor) -> torch.Tensor:
        if input.is_inference():  # it does not tell whether it was changed meanwhile
            return input.to(torch.bfloat16)
        if self._rounded is None or input is not self._input or self._version != input._version:
            self._input, self._version = input, input._version
            self._rounded = input.to(torch.bfloat16)
        rounded: torch.Tensor = self._rounded
        return rounded
