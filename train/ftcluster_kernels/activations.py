"""Computes GELU, its tanh approximation and SiLU, with the multiplication in a gated MLP."""

from functools import partial
from typing import Any

import torch
from torch.nn import functional

from ftcluster_kernels import simd
from ftcluster_kernels.derivatives import by_torch, needs_torch
from ftcluster_kernels.private_torch import is_transformed

torch_gelu = functional.gelu
torch_silu = functional.silu
TORCH = {
    "gelu": torch_gelu,
    "tanh_gelu": partial(torch_gelu, approximate="tanh"),
    "silu": torch_silu,
}


class _Activation(torch.autograd.Function):  # type: ignore[misc]
    """factor * activation(input), for contiguous tensors of the same shape and dtype."""

    kernel = "activations"

    @staticmethod
    def forward(
        ctx: Any, name: str, input: torch.Tensor, factor: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.kind = name
        ctx.save_for_backward(input, factor)
        return simd.activation(name, input, factor)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        input, factor = ctx.saved_tensors
        if needs_torch(grad_output):
            return None, *by_torch(partial(_activated, ctx.kind), (input, factor), grad_output)
        grad_output = simd.in_order(grad_output)
        return None, *simd.activation_backward(ctx.kind, grad_output, input, factor)


def _activated(name: str, input: torch.Tensor, factor: torch.Tensor | None) -> torch.Tensor:
    """Return the same result as the loop in C, computed by torch."""
    output: torch.Tensor = TORCH[name](input.float())
    return (output if factor is None else output * factor).to(input.dtype)


def activate(name: str, input: torch.Tensor, factor: torch.Tensor | None = None) -> torch.Tensor:
    """Return the activation of the input, multiplied by `factor` and rounded once.

    Args:
        name: gelu, tanh_gelu or silu.
        factor: tensor with the shape of `input`; None means 1.
    """
    same_shape = factor is None or factor.shape == input.shape
    if not same_shape or is_transformed() or not simd.is_fit(input, factor):
        output: torch.Tensor = TORCH[name](input)
        return output if factor is None else output * factor
    factor = None if factor is None else factor.contiguous()
    activated: torch.Tensor = _Activation.apply(name, input.contiguous(), factor)
    return activated
