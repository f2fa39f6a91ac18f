"""Rotary positions (Su et al. 2021) as one loop.

transformers multiplies, swaps and adds in eight passes, in fp32; attention then rounds the result.
"""

import inspect
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from ftcluster_train.kernels import simd

NAME = "apply_rotary_pos_emb"  # of the function in the modules of transformers' models
PARAMETERS = ["q", "k", "cos", "sin", "unsqueeze_dim"]

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


def fuse_rotary(model: nn.Module) -> int:
    """Replace transformers' function where a model's modules call it; returns how many there are.

    Only where it computes the same of random values.
    """
    count = 0
    for name in sorted({type(module).__module__ for module in model.modules()}):
        module = sys.modules[name]
        function = getattr(module, NAME, None)
        if function is None or hasattr(function, "__wrapped__"):
            continue
        if list(inspect.signature(function).parameters) == PARAMETERS and _is_one(function):
            setattr(module, NAME, _in_one_pass(function))
            count += 1
    return count


def _in_one_pass(function: Callable[..., Turned]) -> Callable[..., Turned]:
    @wraps(function)
    def turned(
        q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor,
        unsqueeze_dim: int = 1,
    ) -> Turned:  # fmt: skip
        if unsqueeze_dim == 1 and _fits(q, cos) and _fits(k, cos) and not cos.requires_grad:
            return rotary(q, k, cos, sin)
        return function(q, k, cos, sin, unsqueeze_dim)

    return turned


def _fits(values: torch.Tensor, cosines: torch.Tensor) -> bool:
    """Whether attention will want the result in the dtype of the values, and it can be computed."""
    in_bf16 = bool(torch.is_autocast_enabled("cpu"))
    return (
        values.dtype == (torch.bfloat16 if in_bf16 else torch.float32)
        and cosines.dtype == torch.float32
        and values.ndim == 4
        and cosines.ndim == 3
        and cosines.shape[0] in (1, values.shape[0])
        and cosines.shape[1:] == values.shape[2:]
        and values.shape[3] % 2 == 0
    )


@torch.no_grad()  # type: ignore[untyped-decorator]
def _is_one(function: Callable[..., Turned]) -> bool:
    values = torch.linspace(-2, 3, 96).sin().bfloat16()
    query, key = values.view(1, 2, 6, 8), values[:48].view(1, 1, 6, 8)
    angles = torch.linspace(0, 3, 24).view(1, 6, 4).repeat(1, 1, 2)
    cosines, sines = angles.cos(), angles.sin()
    expected = function(query, key, cosines, sines)
    found = rotary(query, key, cosines, sines)
    return all(
        torch.allclose(one.float(), other.float(), rtol=1e-2, atol=1e-3)
        for one, other in zip(expected, found, strict=True)
    )
