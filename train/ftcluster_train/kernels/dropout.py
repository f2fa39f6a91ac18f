"""Dropout with a generator that all threads of a rank compute together.

torch draws one number for each element, on one thread (`bernoulli_`). Here word k of a mask is
SplitMix64's output for counter k (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number
generators"), so a mask is elementwise arithmetic, and each word decides on four elements.
"""

from functools import cache
from typing import Any

import torch

from ftcluster_train.kernels import simd
from ftcluster_train.kernels.simd import Drop

GAMMA = -0x61C8864680B583EB  # 0x9E3779B97F4A7C15, SplitMix64's, as a signed number
MIXES = ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15))  # its shifts and factors
LAST_SHIFT = 31
LANES = 4  # elements that a word of 64 bits decides on
CHUNK = 1 << 15  # words of a thread at once: with their temporaries they fit in its L2 cache
LEVELS = 1 << 16  # steps in which a probability can be given


class _SplitMix64:
    """Random words for a range of counters; keeps its temporaries."""

    def __init__(self, words: int) -> None:
        self.words = words
        self._counters = torch.arange(words).mul_(GAMMA)
        self._values = torch.empty(words, dtype=torch.int64)
        self._shifted = torch.empty(words, dtype=torch.int64)

    def draw(self, seed: int, begin: int, count: int) -> torch.Tensor:
        """Words `begin` to `begin + count` for `seed`: int64, shape (count,).

        The next call overwrites them.
        """
        values, shifted = self._values[:count], self._shifted[:count]
        torch.add(self._counters[:count], _as_signed(seed + begin * GAMMA), out=values)
        for shift, factor in MIXES:
            values.bitwise_xor_(_shift_right(values, shift, shifted)).mul_(factor)
        return values.bitwise_xor_(_shift_right(values, LAST_SHIFT, shifted))


def _shift_right(values: torch.Tensor, by: int, out: torch.Tensor) -> torch.Tensor:
    """The logical shift: torch's repeats the sign."""
    torch.bitwise_right_shift(values, by, out=out)
    return out.bitwise_and_((1 << (64 - by)) - 1)


def _as_signed(number: int) -> int:
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


@cache
def _generator(threads: int) -> _SplitMix64:
    return _SplitMix64(CHUNK * threads)


def drop_of(p: float, seed: int) -> Drop:
    """Which elements a mask of dropout drops: each one with a probability near `p`.

    The probability is the one for which bf16 has the scale 1 / (1 - p) exactly, so that the mean of
    the mask is 1: 0.0986 for 0.1. torch rounds the scale instead, and its mean is off by as much.
    Below 0.004 the nearest scale is 1, and the probability is `p`.

    Args:
        p: from 0 to 1; from 1 - 2^-17 on all elements are dropped.
        seed: any 64 bits.
    """
    scale = float(torch.tensor(1 / (1 - p) if p < 1 else torch.inf, dtype=torch.bfloat16))
    return _drop((1 - 1 / scale) or p, scale, seed)


def exact_drop_of(p: float, seed: int) -> Drop:
    """As `drop_of`, but with the probability `p` itself, and the scale 1."""
    return _drop(p, 1.0, seed)


def _drop(probability: float, scale: float, seed: int) -> Drop:
    """The probability is in steps."""
    return Drop(seed, round(probability * LEVELS) - LEVELS // 2, scale)


def make_mask(count: int, drop: Drop) -> torch.Tensor:
    """A mask in bf16 whose elements are 0 or the scale, which must be a number of bf16.

    Args:
        count: of elements.

    Returns:
        Shape (count,).
    """
    if drops_all(drop):
        return torch.zeros(count, dtype=torch.bfloat16)
    kept_bits = int(torch.tensor(drop.scale, dtype=torch.bfloat16).view(torch.int16).item())
    words = -(-count // LANES)
    mask = torch.empty(words * LANES, dtype=torch.int16)
    generator = _generator(torch.get_num_threads())
    for begin in range(0, words, generator.words):
        lanes = generator.draw(drop.seed, begin, min(generator.words, words - begin))
        part = mask[begin * LANES :][: len(lanes) * LANES]
        torch.ge(lanes.view(torch.int16), drop.threshold, out=part)
        part.mul_(kept_bits)
    return mask[:count].view(torch.bfloat16)


def drops_all(drop: Drop) -> bool:
    """Whether nothing is kept: the threshold is no number of 16 bits."""
    return drop.threshold == LEVELS // 2


class _Dropout(torch.autograd.Function):  # type: ignore[misc]
    """Multiplies by a mask, and by `scale` what the mask leaves."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, drop: Drop, scale: float) -> torch.Tensor:
        ctx.scale = scale
        mask = make_mask(values.numel(), drop).view(values.shape)
        ctx.save_for_backward(mask)
        return _scaled(values * mask, scale)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (mask,) = ctx.saved_tensors
        return _scaled(grad_output * mask, ctx.scale), None, None


class _DropoutAgain(torch.autograd.Function):  # type: ignore[misc]
    """The same in one pass, which draws the mask again for gradients."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, drop: Drop) -> torch.Tensor:
        ctx.drop = drop
        return simd.dropout(values, drop)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _DropoutAgain.apply(grad_output, ctx.drop), None


def _scaled(values: torch.Tensor, scale: float) -> torch.Tensor:
    return values if scale == 1 else values * scale


def _apply(values: torch.Tensor, drop: Drop, scale: float) -> torch.Tensor:
    dropped: torch.Tensor
    if simd.is_available() and not drops_all(drop):
        dropped = _DropoutAgain.apply(values, drop._replace(scale=drop.scale * scale))
    else:
        dropped = _Dropout.apply(values, drop, scale)
    return dropped


def dropout(values: torch.Tensor, p: float) -> torch.Tensor:
    """Dropout with the probability near `p` of `drop_of`.

    The mask depends on torch's default generator, as that of torch's dropout, so gradient
    checkpointing draws the same one again.

    Args:
        values: bf16 or fp32.
        p: from 0 to 1, without both.
    """
    return _apply(values, drop_of(p, draw_seed()), 1.0)


def exact_dropout(values: torch.Tensor, p: float) -> torch.Tensor:
    """As `dropout`, with the probability `p` itself, and scaled as torch scales."""
    return _apply(values, exact_drop_of(p, draw_seed()), 1 / (1 - p))


def draw_seed() -> int:
    """64 bits from torch's default generator."""
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_(-(1 << 63), None).item())
