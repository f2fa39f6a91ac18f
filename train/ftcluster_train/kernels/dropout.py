"""Dropout from a generator that all threads of a rank compute together.

torch draws one number an element on one thread (`bernoulli_`). Here the k-th word of a mask is
SplitMix64's output for a counter (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number
generators"), so a mask is elementwise arithmetic, and each word decides on four elements.
"""

from functools import cache
from typing import Any

import torch
from torch.nn import functional

GAMMA = -0x61C8864680B583EB  # 0x9E3779B97F4A7C15, SplitMix64's, as a signed number
MIXES = ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15))  # its shifts and factors
LAST_SHIFT = 31
LANES = 4  # elements a word of 64 bits decides on
AT_ONCE = 1 << 15  # words of a thread at once: with their temporaries they stay in its L2 cache
LEVELS = 1 << 16  # in how many steps a probability can be given


class _Stream:
    """Random words for a range of counters; holds its temporaries."""

    def __init__(self, words: int) -> None:
        self.words = words
        self._counters = torch.arange(words).mul_(GAMMA)
        self._values = torch.empty(words, dtype=torch.int64)
        self._shifted = torch.empty(words, dtype=torch.int64)

    def draw(self, seed: int, begin: int, count: int) -> torch.Tensor:
        """Words `begin` to `begin + count` of the stream `seed`: int64, of shape (count,).

        They are overwritten by the next call.
        """
        values, shifted = self._values[:count], self._shifted[:count]
        torch.add(self._counters[:count], _signed(seed + begin * GAMMA), out=values)
        for shift, factor in MIXES:
            values.bitwise_xor_(_shift(values, shift, shifted)).mul_(factor)
        return values.bitwise_xor_(_shift(values, LAST_SHIFT, shifted))


def _shift(values: torch.Tensor, by: int, out: torch.Tensor) -> torch.Tensor:
    """The logical shift to the right: torch has only the one that repeats the sign."""
    torch.bitwise_right_shift(values, by, out=out)
    return out.bitwise_and_((1 << (64 - by)) - 1)


def _signed(number: int) -> int:
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


@cache
def _stream(threads: int) -> _Stream:
    return _Stream(AT_ONCE * threads)


def noise(count: int, p: float, seed: int) -> torch.Tensor:
    """Numbers in bf16, each 0 with a probability near `p` and else 1 / (1 - that probability).

    The probability is the one that makes the other number one that bf16 has, so that the mean is 1
    exactly: 0.0986 for 0.1. torch rounds the number instead, and its mean is off by as much. Below
    0.004 the nearest such number is 1, so there the probability is `p`.

    Args:
        count: of numbers.
        p: from 0 to 1; with 1, and from 1 - 2^-17 on, all are 0.
        seed: of the stream, any 64 bits.

    Returns:
        Shape (count,).
    """
    scale = torch.tensor(1 / (1 - p) if p < 1 else torch.inf, dtype=torch.bfloat16)
    share = (1 - 1 / scale.item()) or p
    below = round(share * LEVELS) - LEVELS // 2  # of numbers from -2^15 on
    if below == LEVELS // 2:  # which 16 bits do not have
        return torch.zeros(count, dtype=torch.bfloat16)
    bits = int(scale.view(torch.int16).item())
    words = -(-count // LANES)
    made = torch.empty(words * LANES, dtype=torch.int16)
    stream = _stream(torch.get_num_threads())
    for begin in range(0, words, stream.words):
        drawn = stream.draw(seed, begin, min(stream.words, words - begin)).view(torch.int16)
        part = made[begin * LANES :][: len(drawn)]
        torch.ge(drawn, below, out=part)
        part.mul_(bits)
    return made[:count].view(torch.bfloat16)


class _Dropout(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, p: float, seed: int) -> torch.Tensor:
        factors = noise(values.numel(), p, seed).view(values.shape)
        ctx.save_for_backward(factors)
        return values * factors

    @staticmethod
    def backward(ctx: Any, gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (factors,) = ctx.saved_tensors
        return gradients * factors, None, None


def dropout(
    input: torch.Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> torch.Tensor:
    """Takes the place of `torch.nn.functional.dropout`.

    The mask follows from torch's default generator, so from its seed, as that of torch's dropout;
    also where a layer is computed again in the backward pass.
    """
    if not training or p == 0:
        return input
    if p == 1 or inplace or input.dtype not in (torch.bfloat16, torch.float32):
        return functional.dropout(input, p, training, inplace)
    dropped: torch.Tensor = _Dropout.apply(input, p, draw_seed())
    return dropped


def draw_seed() -> int:
    """64 bits from torch's default generator."""
    return int(torch.empty((), dtype=torch.int64).random_(-(1 << 63), None).item())
