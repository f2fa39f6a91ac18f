"""Computes GELU, its tanh approximation, SiLU and ReLU, with the rest of an MLP's loop.

The loop also multiplies by the factor of a gated MLP, and applies the dropout of the product.
"""

from functools import partial
from typing import Any

import torch
from torch.nn import functional

from ftcluster_kernels import simd
from ftcluster_kernels.derivatives import by_torch, needs_torch
from ftcluster_kernels.dropout import draw_drop
from ftcluster_kernels.private_torch import is_transformed
from ftcluster_kernels.simd import Drop

torch_gelu = functional.gelu
torch_silu = functional.silu
TORCH = {
    "gelu": torch_gelu,
    "tanh_gelu": partial(torch_gelu, approximate="tanh"),
    "silu": torch_silu,
    "relu": torch.relu,
}


class _Activation(torch.autograd.Function):  # type: ignore[misc]
    """dropout(factor * activation(input)), for contiguous tensors of the same shape and dtype."""

    kernel = "activations"

    @staticmethod
    def forward(
        ctx: Any,
        name: str,
        input: torch.Tensor,
        factor: torch.Tensor | None,
        drop: Drop | None,
    ) -> torch.Tensor:
        ctx.kind, ctx.drop = name, drop
        ctx.save_for_backward(input, factor)
        return simd.activation(name, input, factor, drop)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        input, factor = ctx.saved_tensors
        if needs_torch(grad_output):
            formula = partial(_activated, ctx.kind, ctx.drop)
            return None, *by_torch(formula, (input, factor), grad_output), None
        grad_output = simd.in_order(grad_output)
        gradients = simd.activation_backward(ctx.kind, grad_output, input, factor, ctx.drop)
        return None, *gradients, None


def _activated(
    name: str, drop: Drop | None, input: torch.Tensor, factor: torch.Tensor | None
) -> torch.Tensor:
    """Return the same result as the loop in C, computed by torch."""
    output: torch.Tensor = TORCH[name](input.float())
    if factor is not None:
        output = output * factor
    if drop is not None:
        output = output * simd.mask_of(drop, *output.shape)
    return output.to(input.dtype)


def activate(
    name: str,
    input: torch.Tensor,
    factor: torch.Tensor | None = None,
    p: float = 0.0,
    exact: bool = False,
) -> torch.Tensor:
    """Return the activation of the input, times `factor`, after dropout, rounded once.

    Args:
        name: gelu, tanh_gelu, silu or relu.
        factor: tensor with the shape of `input`; None means 1.
        p: dropout probability, at most MOST_DROPPED; 0 means no dropout.
        exact: see `ftcluster_kernels.dropout.dropout`.
    """
    same_shape = factor is None or factor.shape == input.shape
    if not same_shape or is_transformed() or not simd.is_fit(input, factor):
        output: torch.Tensor = TORCH[name](input)
        output = output if factor is None else output * factor
        return torch.dropout(output, p, True) if p else output
    factor = None if factor is None else factor.contiguous()
    drop = draw_drop(p, exact) if p else None
    activated: torch.Tensor = _Activation.apply(name, input.contiguous(), factor, drop)
    return activated
