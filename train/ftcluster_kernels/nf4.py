"""Linear layers whose frozen weight is in NF4 (QLoRA, Dettmers et al. 2023), by bitsandbytes.

Such a weight is a parameter of bytes with two values each. Its values are recomputed for each
matmul, so only those of one layer are in memory.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch

from ftcluster_kernels.derivatives import needs_torch
from ftcluster_kernels.private_torch import is_transformed
from ftcluster_kernels.products import product, torch_linear


@dataclass(frozen=True)
class Nf4:
    """The format of a parameter in NF4, which has this as its attribute `nf4`.

    Attributes:
        state: bitsandbytes' description of the bytes.
        shape: shape of the values.
    """

    state: Any
    shape: torch.Size

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the values."""
        dtype: torch.dtype = self.state.dtype
        return dtype


def in_nf4(quantized: torch.Tensor, state: Any) -> torch.nn.Parameter:
    """Return a frozen parameter of values that bitsandbytes has quantized.

    Args:
        state: bitsandbytes' `QuantState`.
    """
    weight = torch.nn.Parameter(quantized, requires_grad=False)
    shape, by_block = torch.Size(state.shape), copy.copy(state)
    # with AVX512, bitsandbytes 0.50 takes the wrong factors where blocks go on in the next row
    blocks, rest = divmod(shape.numel(), state.blocksize)
    by_block.shape = torch.Size((1, shape.numel()) if rest else (blocks, state.blocksize))
    weight.nf4 = Nf4(by_block, shape)
    return weight


def dense(weight: torch.Tensor) -> torch.Tensor:
    """Return the values of a weight, shape (outputs, inputs): the weight itself unless in NF4."""
    nf4: Nf4 | None = getattr(weight, "nf4", None)
    if nf4 is None:
        return weight
    from bitsandbytes.functional import dequantize_4bit

    values: torch.Tensor = dequantize_4bit(weight.detach(), nf4.state)
    return values.view(nf4.shape)


def dtype_of(weight: torch.Tensor) -> torch.dtype:
    """Return the dtype of a weight's values."""
    dtype: torch.dtype = getattr(weight, "nf4", weight).dtype
    return dtype


def shape_of(weight: torch.Tensor) -> torch.Size:
    """Return the shape of a weight's values."""
    shape: torch.Size = getattr(weight, "nf4", weight).shape
    return shape


def linear_in_nf4(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Compute `torch.nn.functional.linear` with a frozen weight in NF4."""
    input = input.to(dtype_of(weight))
    with torch.autocast("cpu", enabled=False):
        if is_transformed():
            return torch_linear(input, dense(weight), bias)
        output: torch.Tensor = _Nf4Linear.apply(input, weight, bias)
    return output


class _Nf4Linear(torch.autograd.Function):  # type: ignore[misc]
    """The weight and the bias are frozen."""

    kernel = ""

    @staticmethod
    def forward(
        ctx: Any, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.weight = weight
        return product(input, dense(weight).T, bias)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        if needs_torch(grad_output):
            return grad_output @ dense(ctx.weight), None, None
        return product(grad_output, dense(ctx.weight)), None, None
