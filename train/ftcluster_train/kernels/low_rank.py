"""Linear layers with low-rank adapters (LoRA, Hu et al. 2021): W x + scale * B A x.

As one function with a backward pass of its own: what the adapter adds is added by the matrix
product that computes it, and nothing of the layer's output is copied.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from ftcluster_train.kernels.nf4 import dense, dtype_of, linear_in_nf4


@dataclass(frozen=True)
class Adapter:
    """The adapter of a linear layer, whose weight has it as attribute `adapter`.

    Attributes:
        down: A, shape (rank, inputs).
        up: B, shape (outputs, rank); 0 at first.
        scale: what their product is multiplied by.
        dropout: of the adapter's input.
    """

    down: torch.nn.Parameter
    up: torch.nn.Parameter
    scale: float
    dropout: float = 0.0


def linear_with_adapter(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, adapter: Adapter
) -> torch.Tensor:
    """As `torch.nn.functional.linear`, with what the adapter adds; the weight may be in NF4."""
    # before and after a training the adapter is in fp32
    dtype = dtype_of(weight)
    down, up = adapter.down.to(dtype), adapter.up.to(dtype)
    input = input.to(dtype)
    with torch.autocast("cpu", enabled=False):
        if adapter.dropout and torch.is_grad_enabled():
            low = functional.linear(functional.dropout(input, adapter.dropout), down)
            plain = linear_in_nf4 if hasattr(weight, "nf4") else functional.linear
            return plain(input, weight, bias) + functional.linear(low, up * adapter.scale)
        output: torch.Tensor = _LowRankLinear.apply(input, weight, bias, down, up, adapter.scale)
    return output


class _LowRankLinear(torch.autograd.Function):  # type: ignore[misc]
    """The weight and the bias are frozen."""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        down: torch.Tensor,
        up: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        flat = input.flatten(0, -2)
        low = flat @ down.T
        output = functional.linear(flat, dense(weight), bias)
        output.addmm_(low, up.T, alpha=scale)
        ctx.save_for_backward(flat, down, up, low)
        ctx.weight, ctx.scale = weight, scale
        return output.unflatten(0, input.shape[:-1])

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        flat, down, up, low = ctx.saved_tensors
        grad = grad_output.flatten(0, -2)
        grad_up = (grad.T @ low).mul_(ctx.scale)
        grad_low = (grad @ up).mul_(ctx.scale)
        grad_down = grad_low.T @ flat
        grad_input = None
        if ctx.needs_input_grad[0]:
            grad_input = (grad @ dense(ctx.weight)).addmm_(grad_low, down)
            grad_input = grad_input.unflatten(0, grad_output.shape[:-1])
        return grad_input, None, None, grad_down, grad_up, None
