"""Computes dropout with a random generator that all threads of a rank run in parallel.

torch draws a number for each element, on one thread (`bernoulli_`). In this module, word k of a
mask is SplitMix64's output for counter k (Steele, Lea and Flood 2014, "Fast splittable pseudorandom
number generators"), so each thread can compute any part of the mask. Each word determines the mask
of four elements. No mask is stored for the backward pass, which computes the mask again.
"""

from typing import Any

import torch

from ftcluster_kernels import simd
from ftcluster_kernels.private_torch import has_memory, is_transformed
from ftcluster_kernels.simd import Drop

DROP_LEVELS = 1 << 16  # dropout probabilities are multiples of 1 / DROP_LEVELS
MOST_DROPPED = 1 - 1 / DROP_LEVELS  # largest dropout probability


def drop_of(p: float, seed: int) -> Drop:
    """Return a Drop with a probability close to `p`.

    bf16 can represent the chosen scale 1 / (1 - probability) exactly, so the mean of the mask is 1.
    For p = 0.1 the probability is 0.0986. torch keeps `p` and rounds the scale, which shifts the
    mean. For `p` below 0.004 the nearest scale is 1, and the probability is `p`.
    Args:
        p: dropout probability, from 0 to MOST_DROPPED.
        seed: 64 random bits.
    """
    scale = float(torch.tensor(1 / (1 - p), dtype=torch.bfloat16, device="cpu"))
    return _drop((1 - 1 / scale) or p, scale, seed)


def exact_drop_of(p: float, seed: int) -> Drop:
    """Return a Drop with exactly the probability `p`, and with the scale 1."""
    return _drop(p, 1.0, seed)


def _drop(probability: float, scale: float, seed: int) -> Drop:
    """Return a Drop with the probability rounded to a multiple of 1 / DROP_LEVELS."""
    return Drop(seed, round(probability * DROP_LEVELS) - DROP_LEVELS // 2, scale)


class _Dropout(torch.autograd.Function):  # type: ignore[misc]
    kernel = "dropout"

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, drop: Drop) -> torch.Tensor:
        ctx.drop = drop
        return simd.dropout(values, drop)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None]:
        if is_transformed() or not has_memory(grad_output):
            mask = simd.mask_of(ctx.drop, *grad_output.shape)
            return (grad_output * mask).to(grad_output.dtype), None
        return _Dropout.apply(grad_output, ctx.drop), None


def dropout(values: torch.Tensor, p: float, exact: bool = False) -> torch.Tensor:
    """Return the values with each element either 0 or multiplied by the scale.

    The mask depends on the state of torch's default generator, as in torch's dropout, so gradient
    checkpointing draws the same mask again.

    Args:
        values: any tensor; if `simd.is_fit` returns False for it, torch computes dropout.
        p: dropout probability, above 0 and at most MOST_DROPPED.
        exact: True to drop with exactly the probability `p` and the scale 1 / (1 - p) in fp32.
    """
    if is_transformed() or not simd.is_fit(values):
        output: torch.Tensor = torch.dropout(values, p, True)
        return output
    dropped: torch.Tensor = _Dropout.apply(values, draw_drop(p, exact))
    return dropped


def draw_drop(p: float, exact: bool) -> Drop:
    """Return a new mask for `dropout`, which has the same arguments."""
    seed = draw_seed()
    return exact_drop_of(p, seed)._replace(scale=1 / (1 - p)) if exact else drop_of(p, seed)


def draw_seed() -> int:
    """Return 64 bits from torch's default generator."""
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_(-(1 << 63), None).item())
