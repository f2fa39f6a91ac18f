"""GELU, its tanh approximation and SiLU as one loop, also times what a gated MLP multiplies by."""

from functools import partial
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ftcluster_train.kernels import simd

torch_gelu = functional.gelu
torch_silu = functional.silu
TORCH = {
    "gelu": torch_gelu,
    "tanh_gelu": partial(torch_gelu, approximate="tanh"),
    "silu": torch_silu,
}


class _Activation(torch.autograd.Function):  # type: ignore[misc]
    """factor * activation(input); all contiguous, of the same shape and dtype."""

    @staticmethod
    def forward(
        ctx: Any, name: str, input: torch.Tensor, factor: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.kind = name
        ctx.save_for_backward(input, factor)
        return simd.activation(name, input, factor)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(
        ctx: Any, grad_output: torch.Tensor
    ) -> tuple[None, torch.Tensor, torch.Tensor | None]:
        input, factor = ctx.saved_tensors
        return None, *simd.activation_backward(ctx.kind, grad_output.contiguous(), input, factor)


def activate(name: str, input: torch.Tensor, factor: torch.Tensor | None = None) -> torch.Tensor:
    """An activation's output, times a factor of the same shape, rounded once.

    Args:
        name: gelu, tanh_gelu or silu.
    """
    if not simd.is_fit(input, factor) or (factor is not None and factor.shape != input.shape):
        output: torch.Tensor = TORCH[name](input)
        return output if factor is None else output * factor
    factor = None if factor is None else factor.contiguous()
    activated: torch.Tensor = _Activation.apply(name, input.contiguous(), factor)
    return activated
