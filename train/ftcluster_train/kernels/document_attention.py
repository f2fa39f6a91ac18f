"""Attention inside the documents of a row in fp32, one document after the other.

Vectors are read where they are, without copies, and the tokens of outputs and gradients are the
outer dimension in memory, as the layers around have them. For short documents the calls take too
long.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from ftcluster_train.kernels import simd
from ftcluster_train.kernels.simd import Drop

FEW_SCORES = 1 << 16  # of a sample: with fewer it costs more to go by samples than it saves


def takes(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lengths: Sequence[int]
) -> bool:
    """Whether `attention` computes these in less time than groups of documents take.

    Args:
        query, key, value, lengths: as those of `attention`.
    """
    same = query.shape == key.shape == value.shape and len(query) == 1
    fits = same and sum(lengths) == query.shape[2] and min(lengths) > 0
    scores = query.shape[1] * sum(length * length for length in lengths)
    large = scores >= FEW_SCORES * len(lengths)
    return fits and large and query.dtype == key.dtype == value.dtype == torch.float32


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lengths: Sequence[int],
    scale: float,
    kept: float,
    draw: Callable[[], Drop | None],
) -> torch.Tensor:
    """softmax(scale * query key') value times `kept`, of the tokens of each document.

    Args:
        query, key, value: fp32, shape (1, heads, tokens of all, size).
        lengths: of the documents, in tokens.
        draw: returns the dropout of a document's probabilities.
    """
    with torch.autocast("cpu", enabled=False):
        output: torch.Tensor = _Attention.apply(query, key, value, lengths, scale, kept, draw)
    return output


class _Attention(torch.autograd.Function):  # type: ignore[misc]
    """Arguments as those of `attention`."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        lengths: Sequence[int],
        scale: float,
        kept: float,
        draw: Callable[[], Drop | None],
    ) -> torch.Tensor:
        output = _by_token(value)
        probabilities, drops = [], []
        for own in _documents(lengths):
            q, k, v = (x[0, :, own] for x in (query, key, value))
            scores = _product(q, k.transpose(1, 2), scale)
            drop = draw()
            output[0, :, own] = _product(simd.softmax_(scores, 0, drop), v, kept)
            probabilities.append(scores)
            drops.append(drop)
        ctx.save_for_backward(query, key, value, *probabilities)
        ctx.lengths, ctx.scale, ctx.kept, ctx.drops = lengths, scale, kept, drops
        return output

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, *saved = ctx.saved_tensors
        gradients = tuple(map(_by_token, (query, key, value)))
        parts = zip(_documents(ctx.lengths), saved, ctx.drops, strict=True)
        for own, probabilities, drop in parts:
            q, k, v, grad = (x[0, :, own] for x in (query, key, value, grad_output))
            of_query, of_key, of_value = (x[0, :, own] for x in gradients)
            dropped = probabilities if drop is None else simd.dropout(probabilities, drop)
            of_value.copy_(_product(dropped.transpose(1, 2), grad, ctx.kept))
            of_scores = _product(grad, v.transpose(1, 2), ctx.kept)
            simd.softmax_backward_(of_scores, probabilities, 0, drop)
            of_query.copy_(_product(of_scores, k, ctx.scale))
            of_key.copy_(_product(of_scores.transpose(1, 2), q, ctx.scale))
        return *gradients, *[None] * 4


def _documents(lengths: Sequence[int]) -> Iterator[slice]:
    """The place of each document in its row."""
    return (slice(end - size, end) for size, end in zip(lengths, accumulate(lengths), strict=True))


def _by_token(x: torch.Tensor) -> torch.Tensor:
    """Empty, of this shape (samples, heads, tokens, size), tokens before heads in memory."""
    samples, heads, tokens, size = x.shape
    return x.new_empty(samples, tokens, heads, size).transpose(1, 2)


def _product(left: torch.Tensor, right: torch.Tensor, factor: float) -> torch.Tensor:
    """left right times a factor, of matrices."""
    output = left.new_empty(*left.shape[:2], right.shape[2])
    return torch.baddbmm(output, left, right, beta=0, alpha=factor, out=output)
