"""Attention as plain matrix products.

On CPUs these take a half to a quarter of the time of torch's flash kernel and its backward pass,
and with attention dropout torch leaves that kernel for a path of many passes in fp32. The products
keep a matrix of (batch, heads, length, length) in bf16 for the backward pass, so very long
sequences stay with the flash kernel.

A row may have several documents, one after the other, of which no token attends to another one's,
see `documents`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ftcluster_common.kernel_limits import ATTENTION_TOKENS
from ftcluster_train.kernels import simd
from ftcluster_train.kernels.documents import join_documents, layout_of, split_row
from ftcluster_train.kernels.dropout import (
    draw_seed,
    drop_of,
    drops_all,
    exact_drop_of,
    make_mask,
)
from ftcluster_train.kernels.private_torch import softmax_backward, version_of
from ftcluster_train.kernels.simd import Drop

DTYPES = (torch.bfloat16, torch.float32)
MASKED = -1e30  # added to a masked score: its probability is 0, and a fully masked row is not NaN
CAUSAL_BLOCK = 128  # query rows that are computed together, at least
CAUSAL_BLOCKS = 8  # at most
FEW_SCORES = 1 << 16  # of a sample: with fewer it costs more to go by samples than it saves
MANY_KEYS = 0.85  # of all: likewise

torch_attention = functional.scaled_dot_product_attention


class _Attention(torch.autograd.Function):  # type: ignore[misc]
    """softmax(scale * query key' + bias) value, each of shape (batch * heads, length, size).

    Causal attention goes by blocks of query rows, and leaves out the keys behind each block; each
    key may have several query rows, one after the other. With `lengths` it goes by samples, and
    leaves out the keys behind a sample's last one.
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
        lengths: Sequence[int] | None,
        scale: float,
        p: float,
        exact: bool,
    ) -> torch.Tensor:
        query = query * scale
        kept = 1 / (1 - p) if exact and p < 1 else 1.0  # scales the output, not each probability
        output = torch.empty((*query.shape[:2], value.shape[2]), dtype=value.dtype)
        saved: list[torch.Tensor | None] = []
        drops: list[tuple[bool, Drop | None]] = []  # whether in one pass, which keeps no mask
        parts = list(_parts(query.shape[1], key.shape[1], heads, causal, lengths))
        per_key = query.shape[1] // key.shape[1] if causal else 0
        for sample, samples, rows, keys in parts:
            scores = torch.bmm(query[samples, rows], key[samples, keys].transpose(1, 2))
            if bias is not None:
                own = bias if lengths is None else bias[sample, :, :, keys]
                scores.unflatten(0, (-1, heads)).add_(own)
            drop = None
            if p:
                drop = exact_drop_of(p, draw_seed()) if exact else drop_of(p, draw_seed())
            mask = None
            in_one_pass = masked_rows is None and _in_one_pass(scores, drop)
            if in_one_pass:
                dropped = simd.softmax_(scores, per_key, drop)
            else:
                if causal:
                    scores[:, :, -scores.shape[1] // per_key :].add_(
                        _causal_bias(scores.shape[1], per_key, scores.dtype)
                    )
                torch.softmax(scores, -1, out=scores)
                if masked_rows is not None:
                    own = masked_rows if lengths is None else masked_rows[sample]
                    scores.unflatten(0, (-1, heads)).masked_fill_(own, 0)
                if drop is not None:
                    mask = make_mask(scores.numel(), drop).view(scores.shape)
                dropped = scores if mask is None else scores * mask
            torch.bmm(dropped, value[samples, keys], out=output[samples, rows])
            saved += [scores, mask]
            drops.append((in_one_pass, drop))
        ctx.save_for_backward(query, key, value, *saved)
        ctx.parts, ctx.scale, ctx.kept, ctx.heads, ctx.drops = parts, scale, kept, heads, drops
        ctx.per_key = per_key
        ctx.bias = (bias.shape, bias.dtype) if bias is not None else None
        return output if kept == 1 else output.mul_(kept)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if ctx.kept != 1:
            grad_output = grad_output * ctx.kept
        query, key, value, *saved = ctx.saved_tensors
        grad_query = torch.empty_like(query)
        grad_key, grad_value = torch.zeros_like(key), torch.zeros_like(value)
        grad_bias = None
        parts = zip(ctx.parts, saved[::2], saved[1::2], ctx.drops, strict=True)
        for (_, samples, rows, keys), probabilities, mask, (in_one_pass, drop) in parts:
            grad = grad_output[samples, rows]
            dropped = probabilities if mask is None else probabilities * mask
            if in_one_pass and drop is not None:
                dropped = simd.dropout(probabilities, drop)
            grad_value[samples, keys].baddbmm_(dropped.transpose(1, 2), grad)
            grad_probabilities = torch.bmm(grad, value[samples, keys].transpose(1, 2))
            if in_one_pass:
                simd.softmax_backward_(grad_probabilities, probabilities, ctx.per_key, drop)
                grad_scores = grad_probabilities
            else:
                if mask is not None:
                    grad_probabilities.mul_(mask)
                grad_scores = softmax_backward(grad_probabilities, probabilities)
            if ctx.needs_input_grad[3]:  # a bias that is learned is one part, see `_masked`
                grad_bias = _sum_to(grad_scores.unflatten(0, (-1, ctx.heads)), *ctx.bias)
            torch.bmm(grad_scores, key[samples, keys], out=grad_query[samples, rows])
            grad_key[samples, keys].baddbmm_(grad_scores.transpose(1, 2), query[samples, rows])
        return grad_query.mul_(ctx.scale), grad_key, grad_value, grad_bias, *[None] * 7


def _sum_to(grad: torch.Tensor, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """The gradient of what was broadcast from a shape, summed in fp32."""
    dims = [i for i, size in enumerate(shape) if size != grad.shape[i]]
    return (grad.sum(dims, keepdim=True, dtype=torch.float32) if dims else grad).to(dtype)


def _parts(
    queries: int, keys: int, heads: int, causal: bool, lengths: Sequence[int] | None
) -> Iterator[tuple[slice, slice, slice, slice]]:
    """What is computed at once: the sample, its heads, query rows, and the keys that they see.

    Without `lengths` all samples are one.
    """
    if lengths is None:
        everything = slice(None)
        for rows, seen in _blocks(queries, keys, causal):
            yield everything, everything, rows, seen
        return
    for sample, length in enumerate(lengths):
        own = slice(sample * heads, (sample + 1) * heads)
        yield slice(sample, sample + 1), own, slice(0, queries), slice(0, length)


def _blocks(queries: int, keys: int, causal: bool) -> Iterator[tuple[slice, slice]]:
    """Query rows, and the keys that they attend to."""
    if not causal:
        yield slice(0, queries), slice(0, keys)
        return
    size, per_key = max(CAUSAL_BLOCK, keys // CAUSAL_BLOCKS), queries // keys
    for begin in range(0, keys, size):
        end = min(begin + size, keys)
        yield slice(begin * per_key, end * per_key), slice(0, end)


def _in_one_pass(scores: torch.Tensor, drop: Drop | None) -> bool:
    """Whether the causal mask, softmax and dropout are."""
    fits = scores.shape[-1] <= simd.LONGEST and simd.is_fit(scores)
    return fits and (drop is None or not drops_all(drop))


@lru_cache(maxsize=8)
def _causal_bias(queries: int, per_key: int, dtype: torch.dtype) -> torch.Tensor:
    """Of the last keys, of which each has `per_key` queries."""
    length = queries // per_key
    bias = torch.full((length, length), MASKED, dtype=dtype).triu_(1)
    return bias.repeat_interleave(per_key, 0)


@dataclass(frozen=True)
class _Masked:
    """What was made from a mask.

    Attributes:
        made_for: the mask's version, which grows when it is changed in place, and queries and keys.
        bias: added to the scores; None where only keys behind `lengths` are masked.
        rows: of queries without any key, for which torch gives 0; None without any.
        lengths: of each sample, how many keys its queries see; None where going by samples is not
            worth it.
    """

    mask: torch.Tensor
    made_for: tuple[Any, ...]
    bias: torch.Tensor | None
    rows: torch.Tensor | None
    lengths: Sequence[int] | None


def _for_all_heads(keys: torch.Tensor, heads: int) -> torch.Tensor:
    return keys.repeat_interleave(heads // keys.shape[1], 1)


def cast_as_torch(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Under autocast in its dtype, as torch's function casts its arguments.

    Rotary positions and norms in fp32 make queries and keys so, but not values.
    """
    if not torch.is_autocast_enabled("cpu"):
        return tensors
    dtype = torch.get_autocast_dtype("cpu")
    return tuple(x.to(dtype) if x.dtype == torch.float32 else x for x in tensors)


class Attention:
    """Overrides `scaled_dot_product_attention`.

    Args:
        max_length: tokens; longer sequences go to torch's function.
        exact_dropout: whether the probability of dropout is the one asked for, see `make_mask`.
        say: is told each time why a training's call goes to torch's function.
    """

    def __init__(
        self,
        with_dropout: bool,
        max_length: int = ATTENTION_TOKENS,
        exact_dropout: bool = False,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self._with_dropout, self._max_length, self._say = with_dropout, max_length, say
        self._exact_dropout = exact_dropout
        # all layers of a model get the same mask: what was made from the last one is kept
        self._last: _Masked | None = None

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
        query, key, value = cast_as_torch(query, key, value)
        if attn_mask is not None and attn_mask.dtype == torch.int32:
            lengths = attn_mask.flatten().tolist()
            return self._of_documents(query, key, value, lengths, p, scale)
        if not self.is_used(query, key, value, p) or self._is_left(
            query, key, value, attn_mask, is_causal
        ):
            if enable_gqa and attn_mask is not None:  # torch's kernels take one or the other
                key, value = (_for_all_heads(x, query.shape[1]) for x in (key, value))
                enable_gqa = False
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
            key, value = (_for_all_heads(x, heads) for x in (key, value))
        # one head of keys for all queries (Falcon's multi_query), or one batch of them
        key, value = (x.expand(*query.shape[:2], -1, -1) for x in (key, value))
        bias, masked_rows, lengths = self._bias_of(attn_mask, query, key.shape[2])
        matrices = (x.flatten(0, 1) for x in (query, key, value))
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        with torch.autocast("cpu", enabled=False):
            output: torch.Tensor = _Attention.apply(
                *matrices, bias, masked_rows, heads, is_causal, lengths, scale, p,
                self._exact_dropout,
            )  # fmt: skip
        return output.unflatten(0, (-1, heads))

    def _of_documents(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        lengths: list[int],
        p: float,
        scale: float | None,
    ) -> torch.Tensor:
        """Causal attention inside each document, from shape (1, heads, sum(lengths), size).

        Queries whose heads share keys are rows of one matrix, so keys need not be repeated.
        """
        layout = layout_of(tuple(lengths), self._max_length)
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        per_key = query.shape[1] // key.shape[1]
        parts = (split_row(x, layout, n) for x, n in ((query, per_key), (key, 1), (value, 1)))
        outputs = []
        for q, k, v in zip(*parts, strict=True):
            of_a_head = q[:, :, : k.shape[2]]  # as many queries as keys
            if self.is_used(q, k, v, p) and not self._is_left(of_a_head, k, v, None, causal=False):
                matrices = (x.flatten(0, 1) for x in (q, k, v))
                with torch.autocast("cpu", enabled=False):
                    output = _Attention.apply(
                        *matrices, None, None, 1, True, None, scale, p, self._exact_dropout
                    )
                outputs.append(output.unflatten(0, q.shape[:2]))
            else:
                q = q.unflatten(2, (-1, per_key)).permute(0, 3, 1, 2, 4)
                k, v = (x.unsqueeze(1).expand(-1, per_key, -1, -1, -1) for x in (k, v))
                output = torch_attention(
                    *(x.flatten(0, 1) for x in (q, k, v)), dropout_p=p, is_causal=True, scale=scale
                )
                output = output.unflatten(0, (-1, per_key)).permute(0, 2, 3, 1, 4).flatten(2, 3)
                outputs.append(output)
        return join_documents(outputs, layout, per_key)

    def is_used(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, p: float
    ) -> bool:
        """In training: also in a checkpoint's first pass, which keeps nothing for the backward."""
        trained = query.requires_grad or key.requires_grad or value.requires_grad
        return p > 0 or (trained and torch.is_grad_enabled())

    def _is_left(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        causal: bool,
    ) -> bool:
        """Whether a training's call goes to torch's function."""
        why = self.why_not(query, key, value, mask, causal)
        if why and self._say:
            self._say(f"attention with {why} is left to torch")
        return bool(why)

    def why_not(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        causal: bool,
    ) -> str:
        """Why a training's call goes to torch's function; "" if it does not."""
        lengths = query.shape[-2], key.shape[-2]
        if not query.ndim == key.ndim == 4:
            return "tensors without a dimension of heads"
        if not query.dtype == key.dtype == value.dtype:
            return "tensors of different types"
        if query.dtype not in DTYPES:
            return f"tensors of {query.dtype}"
        if mask is not None and mask.ndim != 4:
            return f"a mask of {mask.ndim} dimensions"
        if causal and lengths[0] != lengths[1]:
            return "causal attention with more keys than queries"
        if max(lengths) > self._max_length:
            return f"more than {self._max_length} tokens"
        return ""

    def _bias_of(
        self, mask: torch.Tensor | None, query: torch.Tensor, keys: int
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, Sequence[int] | None]:
        """What is added to the scores, the rows that see nothing, and the keys of each sample."""
        if mask is None:
            return None, None, None
        last = self._last  # another thread may replace it
        made_for = version_of(mask), query.dtype, query.shape[:3], keys
        if last is None or mask is not last.mask or made_for != last.made_for:
            last = _masked(mask, query, keys, made_for)
            self._last = last
        return last.bias, last.rows, last.lengths


def _masked(
    mask: torch.Tensor, query: torch.Tensor, keys: int, made_for: tuple[Any, ...]
) -> _Masked:
    masked = mask.to(query.dtype).isneginf()  # fp32's smallest number is -inf in bf16
    bias: torch.Tensor | None = mask
    if mask.dtype == torch.bool:
        masked = ~mask
        bias = torch.zeros(mask.shape, dtype=query.dtype).masked_fill_(masked, MASKED)
    rows = masked.all(-1, keepdim=True)
    lengths = None
    batch, heads, queries, _ = query.shape
    if mask.requires_grad:  # its gradient is that of all scores
        return _Masked(mask, made_for, mask, rows if rows.any() else None, None)
    if mask.shape[::3] == (batch, keys) and heads * queries * keys >= FEW_SCORES:
        seen = (~masked).any(2).any(1)  # (batch, keys)
        lengths = (seen * torch.arange(1, keys + 1)).amax(-1).clamp(min=1).tolist()
        if sum(lengths) > MANY_KEYS * batch * keys:
            lengths = None
        elif mask.dtype == torch.bool:
            behind = torch.arange(keys) >= torch.tensor(lengths).view(-1, 1, 1, 1)
            if not (masked & ~behind).any():  # nothing else is masked
                bias = None
    return _Masked(mask, made_for, bias, rows if rows.any() else None, lengths)
