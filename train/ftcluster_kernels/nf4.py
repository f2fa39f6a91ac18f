"""Computes linear layers with frozen weights that bitsandbytes quantized to NF4.

NF4 comes from QLoRA (Dettmers et al. 2023). Such a weight is an `Nf4Weight`, a parameter whose
bytes contain two values each. Each matmul dequantizes its weight again, so the dequantized values
of only one layer are in memory.
"""

import copy
from typing import Any

import torch

from ftcluster_kernels.derivatives import needs_torch
from ftcluster_kernels.private_torch import is_transformed
from ftcluster_kernels.products import product, torch_linear


class Nf4Weight(torch.nn.Parameter):  # type: ignore[misc]
    """A frozen parameter whose elements are bytes with two NF4 values each.

    Attributes:
        state: bitsandbytes' `QuantState` of the bytes.
        values_shape: shape of the dequantized values.
    """

    def __new__(cls, quantized: torch.Tensor, *_: Any) -> "Nf4Weight":
        """Make the tensor, which shares the memory of the bytes."""
        weight: Nf4Weight = torch.Tensor._make_subclass(cls, quantized.detach(), False)
        return weight

    def __init__(self, _: torch.Tensor, state: Any, values_shape: torch.Size) -> None:
        self.state, self.values_shape = state, values_shape

    def __deepcopy__(self, memo: dict[int, Any]) -> "Nf4Weight":
        copied = Nf4Weight(self.data.clone(), copy.deepcopy(self.state, memo), self.values_shape)
        memo[id(self)] = copied
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        return Nf4Weight, (self.data, self.state, self.values_shape)


def in_nf4(quantized: torch.Tensor, state: Any) -> Nf4Weight:
    """Return a frozen parameter for values that bitsandbytes has quantized.

    Args:
        state: bitsandbytes' `QuantState`.
    """
    shape, by_block = torch.Size(state.shape), copy.copy(state)
    # with AVX512, bitsandbytes 0.50 uses wrong factors if blocks continue in the next row
    blocks, rest = divmod(shape.numel(), state.blocksize)
    by_block.shape = torch.Size((1, shape.numel()) if rest else (blocks, state.blocksize))
    return Nf4Weight(quantized, by_block, shape)


def dense(weight: torch.Tensor) -> torch.Tensor:
    """Return a weight of shape (outputs, inputs); a weight in NF4 is dequantized."""
    if type(weight) is not Nf4Weight:
        return weight
    from bitsandbytes.functional import dequantize_4bit

    values: torch.Tensor = dequantize_4bit(weight.data, weight.state)
    return values.view(weight.values_shape)


def dtype_of(weight: torch.Tensor) -> torch.dtype:
    """Return the dtype of a weight's values."""
    dtype: torch.dtype = weight.state.dtype if type(weight) is Nf4Weight else weight.dtype
    return dtype


def shape_of(weight: torch.Tensor) -> torch.Size:
    """Return the shape of a weight's values."""
    return weight.values_shape if type(weight) is Nf4Weight else weight.shape


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
    """The function behind `linear_in_nf4`; the weight and the bias are frozen."""

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
