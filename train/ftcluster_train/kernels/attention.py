"""Attention as plain matrix products.

On CPUs these take a half to a quarter of the time of torch's flash kernel and its backward pass,
and with attention dropout torch leaves that kernel for a path of many passes in fp32. The products
keep a matrix of (batch, heads, length, length) in bf16 for the backward pass, so very long
sequences stay with the flash kernel.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch.nn import functional

from ftcluster_train.kernels.dropout import draw_seed, noise

LONGEST = 1024  # tokens
TYPES = (torch.bfloat16, torch.float32)
NOT = -1e30  # added to the score of what must not be seen: its share is 0, and no row becomes NaN
CAUSAL_BLOCK = 128  # rows of queries that see the same keys; larger ones where there are many
CAUSAL_BLOCKS = 8

flash = functional.scaled_dot_product_attention


class _Attention(torch.autograd.Function):  # type: ignore[misc]
    """softmax(scale * query key' + bias) value, each matrix of shape (batch * heads, length, .).

    A causal one goes by blocks of rows, and leaves out the keys that come behind a block.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        bias: torch.Tensor | None,
        unseeing: torch.Tensor | None,
        heads: int,
        causal: bool,
        scale: float,
        p: float,
    ) -> torch.Tensor:
        query = query * scale
        found = torch.empty((*query.shape[:2], value.shape[2]), dtype=value.dtype)
        kept = []
        for rows, seen in _blocks(query.shape[1], key.shape[1], causal):
            shares = torch.bmm(query[:, rows], key[:, seen].transpose(1, 2))
            if causal:
                shares[:, :, rows].add_(_triangle(rows.stop - rows.start, shares.dtype))
            if bias is not None:
                shares.unflatten(0, (-1, heads)).add_(bias)
            torch.softmax(shares, -1, out=shares)
            if unseeing is not None:
                shares.unflatten(0, (-1, heads)).masked_fill_(unseeing, 0)
            factors = noise(shares.numel(), p, draw_seed()).view(shares.shape) if p else None
            found[:, rows] = torch.bmm(_dropped(shares, factors), value[:, seen])
            kept += [shares, factors]
        ctx.save_for_backward(query, key, value, *kept)
        ctx.causal, ctx.scale = causal, scale
        return found

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, *kept = ctx.saved_tensors
        of_query = torch.empty_like(query)
        of_key, of_value = torch.zeros_like(key), torch.zeros_like(value)
        blocks = _blocks(query.shape[1], key.shape[1], ctx.causal)
        for (rows, seen), shares, factors in zip(blocks, kept[::2], kept[1::2], strict=True):
            of_found = gradient[:, rows]
            of_value[:, seen] += torch.bmm(_dropped(shares, factors).transpose(1, 2), of_found)
            of_shares = torch.bmm(of_found, value[:, seen].transpose(1, 2))
            if factors is not None:
                of_shares.mul_(factors)
            of_scores = torch.ops.aten._softmax_backward_data(of_shares, shares, -1, shares.dtype)
            of_query[:, rows] = torch.bmm(of_scores, key[:, seen])
            of_key[:, seen] += torch.bmm(of_scores.transpose(1, 2), query[:, rows])
        return of_query.mul_(ctx.scale), of_key, of_value, None, None, None, None, None, None


def _blocks(queries: int, keys: int, causal: bool) -> Iterator[tuple[slice, slice]]:
    """Rows of queries, and the keys that they see."""
    if not causal:
        yield slice(0, queries), slice(0, keys)
        return
    size = max(CAUSAL_BLOCK, queries // CAUSAL_BLOCKS)
    for begin in range(0, queries, size):
        end = min(begin + size, queries)
        yield slice(begin, end), slice(0, end)


def _dropped(shares: torch.Tensor, factors: torch.Tensor | None) -> torch.Tensor:
    return shares if factors is None else shares * factors


@lru_cache(maxsize=8)
def _triangle(length: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.full((length, length), NOT, dtype=dtype).triu_(1)


class Attention:
    """Takes the place of `scaled_dot_product_attention` in training.

    Args:
        with_dropout: whether the shares are dropped out as the model asks for.
        longest: tokens up to which the plain products are taken.
    """

    def __init__(self, with_dropout: bool, longest: int = LONGEST) -> None:
        self._with_dropout, self._longest = with_dropout, longest
        self._mask: torch.Tensor | None = None  # the last one, which all layers have in common
        self._version = 0  # a mask can be changed in place
        self._bias: torch.Tensor | None = None
        self._unseeing: torch.Tensor | None = None  # queries that see no key: torch gives them 0

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        """As torch's; shapes (batch, heads, length, head size)."""
        p = dropout_p if self._with_dropout else 0.0
        if not self._takes(query, key, value, attn_mask, is_causal):
            return flash(
                query,
                key,
                value,
                attn_mask,
                dropout_p=p,
                is_causal=is_causal,
                scale=scale,
                enable_gqa=enable_gqa,
            )
        heads = query.shape[1]
        if enable_gqa:
            groups = heads // key.shape[1]
            key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
        # one head of keys for all queries (Falcon's multi_query), or one batch of them
        key, value = (x.expand(*query.shape[:2], -1, -1) for x in (key, value))
        bias, unseeing = self._as_bias(attn_mask, query)
        matrices = (x.flatten(0, 1) for x in (query, key, value))
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        with torch.autocast("cpu", enabled=False):
            found: torch.Tensor = _Attention.apply(
                *matrices, bias, unseeing, heads, is_causal, scale, p
            )
        return found.unflatten(0, (-1, heads))

    def _takes(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        causal: bool,
    ) -> bool:
        shapes = query.ndim == key.ndim == 4 and (mask is None or mask.ndim == 4)
        lengths = query.shape[-2], key.shape[-2]
        same = not causal or lengths[0] == lengths[1]
        learns = torch.is_grad_enabled() and query.requires_grad
        fixed = mask is None or not mask.requires_grad  # the mask gets no gradient here
        types = query.dtype == key.dtype == value.dtype and query.dtype in TYPES
        return shapes and same and learns and fixed and types and max(lengths) <= self._longest

    def _as_bias(
        self, mask: torch.Tensor | None, query: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        if mask is None:
            return None, None
        version = 0 if mask.is_inference() else mask._version  # such tensors have none
        if mask is not self._mask or version != self._version:
            self._mask, self._version, self._bias = mask, version, mask
            hidden = mask.to(query.dtype).isneginf()  # the least number of fp32 is -inf in bf16
            if mask.dtype == torch.bool:
                hidden = ~mask
                self._bias = torch.zeros(mask.shape, dtype=query.dtype).masked_fill_(hidden, NOT)
            unseeing = hidden.all(-1, keepdim=True)
            self._unseeing = unseeing if unseeing.any() else None
        return self._bias, self._unseeing
