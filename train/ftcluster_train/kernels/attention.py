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

from ftcluster_train.kernels.dropout import draw_seed, make_mask
from ftcluster_train.kernels.private_torch import softmax_backward, version_of

MAX_LENGTH = 1024  # tokens
DTYPES = (torch.bfloat16, torch.float32)
MASKED = -1e30  # added to a masked score: its probability is 0, and a fully masked row is not NaN
CAUSAL_BLOCK = 128  # query rows that are computed together, at least
CAUSAL_BLOCKS = 8  # at most

torch_attention = functional.scaled_dot_product_attention


class _Attention(torch.autograd.Function):  # type: ignore[misc]
    """softmax(scale * query key' + bias) value, each of shape (batch * heads, length, size).

    Causal attention goes by blocks of query rows, and leaves out the keys behind each block.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        bias: torch.Tensor | None,
        masked_rows: torch.Tensor | None,
        heads: int,
        causal: bool,
        scale: float,
        p: float,
    ) -> torch.Tensor:
        query = query * scale
        output = torch.empty((*query.shape[:2], value.shape[2]), dtype=value.dtype)
        saved = []
        for rows, keys in _blocks(query.shape[1], key.shape[1], causal):
            scores = torch.bmm(query[:, rows], key[:, keys].transpose(1, 2))
            if causal:
                scores[:, :, rows].add_(_causal_bias(rows.stop - rows.start, scores.dtype))
            if bias is not None:
                scores.unflatten(0, (-1, heads)).add_(bias)
            probabilities = torch.softmax(scores, -1, out=scores)
            if masked_rows is not None:
                probabilities.unflatten(0, (-1, heads)).masked_fill_(masked_rows, 0)
            mask = None
            if p:
                mask = make_mask(probabilities.numel(), p, draw_seed()).view(probabilities.shape)
            output[:, rows] = torch.bmm(_dropped(probabilities, mask), value[:, keys])
            saved += [probabilities, mask]
        ctx.save_for_backward(query, key, value, *saved)
        ctx.causal, ctx.scale = causal, scale
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, *saved = ctx.saved_tensors
        grad_query = torch.empty_like(query)
        grad_key, grad_value = torch.zeros_like(key), torch.zeros_like(value)
        blocks = _blocks(query.shape[1], key.shape[1], ctx.causal)
        for (rows, keys), probabilities, mask in zip(blocks, saved[::2], saved[1::2], strict=True):
            grad = grad_output[:, rows]
            grad_value[:, keys] += torch.bmm(_dropped(probabilities, mask).transpose(1, 2), grad)
            grad_probabilities = torch.bmm(grad, value[:, keys].transpose(1, 2))
            if mask is not None:
                grad_probabilities.mul_(mask)
            grad_scores = softmax_backward(grad_probabilities, probabilities)
            grad_query[:, rows] = torch.bmm(grad_scores, key[:, keys])
            grad_key[:, keys] += torch.bmm(grad_scores.transpose(1, 2), query[:, rows])
        return grad_query.mul_(ctx.scale), grad_key, grad_value, *[None] * 6


def _blocks(queries: int, keys: int, causal: bool) -> Iterator[tuple[slice, slice]]:
    """Query rows, and the keys that they attend to."""
    if not causal:
        yield slice(0, queries), slice(0, keys)
        return
    size = max(CAUSAL_BLOCK, queries // CAUSAL_BLOCKS)
    for begin in range(0, queries, size):
        end = min(begin + size, queries)
        yield slice(begin, end), slice(0, end)


def _dropped(probabilities: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    return probabilities if mask is None else probabilities * mask


@lru_cache(maxsize=8)
def _causal_bias(length: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.full((length, length), MASKED, dtype=dtype).triu_(1)


class Attention:
    """Overrides `scaled_dot_product_attention` in training.

    Args:
        max_length: tokens; longer sequences go to torch's function.
    """

    def __init__(self, with_dropout: bool, max_length: int = MAX_LENGTH) -> None:
        self._with_dropout, self._max_length = with_dropout, max_length
        # all layers of a model get the same mask: the bias made from the last one is kept
        self._mask: torch.Tensor | None = None
        self._version = 0
        self._bias: torch.Tensor | None = None
        self._masked_rows: torch.Tensor | None = None  # of queries without any key: torch gives 0

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
        if not self._supports(query, key, value, attn_mask, is_causal):
            return torch_attention(
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
        bias, masked_rows = self._bias_of(attn_mask, query)
        matrices = (x.flatten(0, 1) for x in (query, key, value))
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        with torch.autocast("cpu", enabled=False):
            output: torch.Tensor = _Attention.apply(
                *matrices, bias, masked_rows, heads, is_causal, scale, p
            )
        return output.unflatten(0, (-1, heads))

    def _supports(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        causal: bool,
    ) -> bool:
        lengths = query.shape[-2], key.shape[-2]
        return (
            query.ndim == key.ndim == 4
            and (mask is None or (mask.ndim == 4 and not mask.requires_grad))
            and (not causal or lengths[0] == lengths[1])
            and torch.is_grad_enabled()
            and query.requires_grad
            and query.dtype == key.dtype == value.dtype
            and query.dtype in DTYPES
            and max(lengths) <= self._max_length
        )

    def _bias_of(
        self, mask: torch.Tensor | None, query: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        if mask is None:
            return None, None
        if mask is not self._mask or version_of(mask) != self._version:
            self._mask, self._version, self._bias = mask, version_of(mask), mask
            masked = mask.to(query.dtype).isneginf()  # fp32's smallest number is -inf in bf16
            if mask.dtype == torch.bool:
                masked = ~mask
                self._bias = torch.zeros(mask.shape, dtype=query.dtype).masked_fill_(masked, MASKED)
            rows = masked.all(-1, keepdim=True)
            self._masked_rows = rows if rows.any() else None
        return self._bias, self._masked_rows
