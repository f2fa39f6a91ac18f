"""Rotary positions (Su et al. 2021) as one loop.

transformers multiplies, swaps and adds in eight passes, in fp32; attention then rounds the result.
"""

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from ftcluster_train.kernels import simd

Turned = tuple[torch.Tensor, torch.Tensor]


class _Rotary(torch.autograd.Function):  # type: ignore[misc]
    """Shapes (batch, heads, tokens, size), and (1 or batch, tokens, size) of cosines and sines."""

    @staticmethod
    def forward(
        ctx: Any, values: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(cosines, sines)
        return _turn(values, cosines, sines, back=False)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        cosines, sines = ctx.saved_tensors
        return _turn(grad_output, cosines, sines, back=True), None, None


def _turn(
    values: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, back: bool
) -> torch.Tensor:
    """Tokens are the outer dimension in memory, as before a model has split the heads."""
    return simd.rotary(values.transpose(1, 2).contiguous(), cosines, sines, back).transpose(1, 2)


def rotary(
    query: torch.Tensor, key: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor
) -> Turned:
    """Queries and keys, turned by the positions of their tokens."""
    angles = (cosines.contiguous(), sines.contiguous())
    return _Rotary.apply(query, *angles), _Rotary.apply(key, *angles)
