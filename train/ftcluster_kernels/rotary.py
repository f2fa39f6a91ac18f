"""Applies rotary positions (Su et al. 2021) in one loop.

transformers needs eight passes in fp32 to multiply, swap and add, and attention then rounds the
result.
"""

from typing import Any

import torch

from ftcluster_kernels import simd
from ftcluster_kernels.derivatives import needs_torch
from ftcluster_kernels.private_torch import is_transformed

Turned = tuple[torch.Tensor, torch.Tensor]


class _Rotary(torch.autograd.Function):  # type: ignore[misc]
    """The function behind `rotary`.

    Values have shape (batch, heads, tokens, size). Cosines and sines have shape (batch, tokens,
    size) or (1, tokens, size).
    """

    kernel = "rotary"

    @staticmethod
    def forward(
        ctx: Any, values: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(cosines, sines)
        return _turn(values, cosines, sines, back=False)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        cosines, sines = ctx.saved_tensors
        if needs_torch(grad_output):  # the transposed matrix
            cosines, sines = cosines.unsqueeze(1), sines.unsqueeze(1)
            low, high = (grad_output * sines).chunk(2, -1)
            turned = grad_output * cosines + torch.cat((high, -low), -1)
            return turned.to(grad_output.dtype), None, None
        return _turn(grad_output, cosines, sines, back=True), None, None


def _turn(
    values: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, back: bool
) -> torch.Tensor:
    """Return rotated values in the memory layout of split heads: tokens are the outer dimension."""
    by_token = simd.in_order(values.transpose(1, 2))
    return simd.rotary(by_token, cosines, sines, back).transpose(1, 2)


def rotary(
    query: torch.Tensor, key: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor
) -> Turned:
    """Return queries and keys, rotated by the positions of their tokens."""
    if is_transformed():
        return _turned(query, cosines, sines), _turned(key, cosines, sines)
    angles = (simd.in_order(cosines), simd.in_order(sines))
    return _Rotary.apply(query, *angles), _Rotary.apply(key, *angles)


def _turned(values: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Return the result of `_Rotary`, computed by torch."""
    cosines, sines = cosines.unsqueeze(1), sines.unsqueeze(1)
    low, high = values.chunk(2, -1)
    return (values * cosines + torch.cat((-high, low), -1) * sines).to(values.dtype)
