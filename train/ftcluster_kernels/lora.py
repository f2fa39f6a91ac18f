"""Linear layers with low-rank adapters (LoRA, Hu et al. 2021): W x + scale * B A x.

The layer and its adapter are one function with its own backward pass. The adapter's matmul adds
directly to the layer's output, so no copy of the output is needed.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from ftcluster_kernels.derivatives import by_torch, needs_torch
from ftcluster_kernels.gradient_sums import GradientSums, unless_hooked
from ftcluster_kernels.nf4 import Nf4Weight, dense, dtype_of, linear_in_nf4
from ftcluster_kernels.private_torch import is_transformed
from ftcluster_kernels.products import (
    MULTIPLE,
    product_of_columns,
    product_with_adapter,
    takes_adapter,
    torch_linear,
)

Sums = tuple[GradientSums | None, GradientSums | None]  # for an adapter's A and B


@dataclass(frozen=True)
class Adapter:
    """The adapter of a linear layer.

    Attributes:
        down: A, shape (rank, inputs).
        up: B, shape (outputs, rank); 0 at first.
        scale: factor of B A.
        dropout: dropout probability of the adapter's input.
    """

    down: torch.nn.Parameter
    up: torch.nn.Parameter
    scale: float
    dropout: float = 0.0


def linear_with_adapter(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    adapter: Adapter,
    sums: Sums = (None, None),
) -> torch.Tensor:
    """Compute `torch.nn.functional.linear` plus the adapter; the weight may be in NF4.

    Args:
        sums: sums that get the gradients of the adapter's A and B; None means that autograd gets
            the gradient. Autograd also gets it if A or B has another dtype than the weight.
    """
    # before and after a training the adapter is in fp32
    dtype = dtype_of(weight)
    factors = adapter.down, adapter.up
    down, up = (factor.to(dtype) for factor in factors)
    sums = (sums[0] if down is factors[0] else None, sums[1] if up is factors[1] else None)
    input = input.to(dtype)
    dropped = adapter.dropout if torch.is_grad_enabled() else 0.0
    with torch.autocast("cpu", enabled=False):
        if dropped or input.ndim < 2 or is_transformed():
            low = functional.linear(functional.dropout(input, dropped) if dropped else input, down)
            plain = linear_in_nf4 if type(weight) is Nf4Weight else functional.linear
            return plain(input, weight, bias) + functional.linear(low, up * adapter.scale)
        output: torch.Tensor = _LowRankLinear.apply(
            input, weight, bias, down, up, adapter.scale, sums
        )
    return output


class _LowRankLinear(torch.autograd.Function):  # type: ignore[misc]
    """The function behind `linear_with_adapter`; the weight and the bias are frozen."""

    kernel = "low_rank"

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        down: torch.Tensor,
        up: torch.Tensor,
        scale: float,
        sums: Sums,
    ) -> torch.Tensor:
        ctx.sums = sums
        flat, right = input.flatten(0, -2), dense(weight).T
        ctx.weight, ctx.scale, ctx.factors = weight, scale, (down, up)
        if takes_adapter(flat, right, bias, down.T, up.T):
            more = -len(down) % MULTIPLE
            down, up = functional.pad(down, (0, 0, 0, more)), functional.pad(up, (0, more))
        output, low = product_with_adapter(flat, right, bias, down.T, up.T, scale)
        ctx.save_for_backward(input, down, up, low)
        return output.unflatten(0, input.shape[:-1])

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        input, down, up, low = ctx.saved_tensors
        right = dense(ctx.weight)
        if needs_torch(grad_output):
            of_input, of_down, of_up = by_torch(
                lambda x, down, up: (
                    torch_linear(x, right) + torch_linear(torch_linear(x, down), up) * ctx.scale
                ),
                (input, *ctx.factors),
                grad_output,
            )
            return of_input, None, None, of_down, of_up, None, None
        flat, grad = input.flatten(0, -2), grad_output.flatten(0, -2)
        if ctx.needs_input_grad[0]:
            grad_input, grad_low = product_with_adapter(grad, right, None, up, down, ctx.scale)
            grad_input = grad_input.unflatten(0, grad_output.shape[:-1])
        else:
            grad_input, grad_low = None, (grad @ up).mul_(ctx.scale)
        of_down = _to_sums(ctx.sums[0], ctx.factors[0], product_of_columns(flat, grad_low).T)
        of_up = _to_sums(ctx.sums[1], ctx.factors[1], product_of_columns(grad, low))
        return grad_input, None, None, of_down, of_up, None, None


def _to_sums(
    sums: GradientSums | None, weight: torch.Tensor, gradient: torch.Tensor
) -> torch.Tensor | None:
    """Add a padded gradient to the weight's sums, or return it cropped if there are no sums."""
    gradient, sums = gradient[: len(weight), : weight.shape[1]], unless_hooked(sums, weight)
    if sums is None:
        return gradient.to(weight.dtype)
    sums.add(gradient, 1.0)
    return None
