"""Computes attention by matrix multiplications: in our own loops if possible, otherwise in torch.

On CPUs, this takes a quarter to half as long as torch's flash kernel, forward and backward.
With attention dropout, torch does not use its flash kernel but makes many passes in fp32. The
matmuls here keep a matrix of shape (batch, heads, length, length) for the backward pass, so very
long sequences use torch's flash kernel.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

import torch

from ftcluster_kernels import attention_heads, simd
from ftcluster_kernels.biased_mask import BiasedMask
from ftcluster_kernels.derivatives import by_torch, needs_torch
from ftcluster_kernels.dropout import draw_seed, drop_of, exact_drop_of
from ftcluster_kernels.private_torch import is_transformed
from ftcluster_kernels.simd import Drop

MASKED = -1e30  # added to masked scores; -inf would make a fully masked row NaN
TINY = 1e-45  # fp32's smallest positive value
CAUSAL_BLOCK = 128  # minimum number of query rows that are computed together
CAUSAL_BLOCKS = 8  # maximum number of blocks
FEW_SCORES = 1 << 16  # with fewer scores per sample, computing each sample alone does not pay
MANY_KEYS = 0.85  # if more of the keys are seen, computing each sample alone does not pay


class _HeadAttention(torch.autograd.Function):  # type: ignore[misc]
    """softmax(scale * query @ key.T + bias) @ value, for shapes (samples, heads, length, size)."""

    kernel = "attention"

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        bias: torch.Tensor | None,
        hidden: torch.Tensor | None,
        plan: attention_heads.Plan,
    ) -> torch.Tensor:
        q, k, v = map(attention_heads.with_rows, (query, key, value))
        output, probabilities = attention_heads.forward(q, k, v, bias, hidden, plan)
        trained = bias if ctx.needs_input_grad[3] else None
        ctx.save_for_backward(query, key, value, probabilities, trained)
        ctx.plan = plan
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, probabilities, bias = ctx.saved_tensors
        if needs_torch(grad_output):
            formula = partial(_of_heads, ctx.plan, probabilities)
            return *by_torch(formula, (query, key, value, bias), grad_output), None, None
        grad, q, k, v = map(attention_heads.with_rows, (grad_output, query, key, value))
        of_scores = None if bias is None else torch.empty_like(probabilities)
        gradients = attention_heads.backward(grad, probabilities, q, k, v, ctx.plan, of_scores)
        if of_scores is None:
            return *gradients, None, None, None
        of_scores = of_scores.view(*query.shape[:3], key.shape[2])
        return *gradients, _sum_to(of_scores, bias.shape, bias.dtype), None, None


class _Attention(torch.autograd.Function):  # type: ignore[misc]
    """softmax(scale * query @ key.T + bias) @ value, for shapes (batch * heads, length, size).

    The output is 0 for `masked_rows`.

    Causal attention computes blocks of query rows, and skips the keys after each block. Each key
    may have several consecutive query rows. With `lengths`, the function computes each sample alone
    and skips the keys after the sample's last visible key.
    """

    kernel = "attention"

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
        saved = query, key, value, masked_rows, bias if ctx.needs_input_grad[3] else None
        query = query * scale
        kept = 1 / (1 - p) if exact else 1.0  # scales the output, not each probability
        output = simd.empty(*query.shape[:2], value.shape[2], dtype=value.dtype)
        probabilities: list[torch.Tensor] = []
        drops: list[Drop | None] = []
        parts = list(_parts(query.shape[1], key.shape[1], heads, causal, lengths))
        per_key = query.shape[1] // key.shape[1] if causal else 0
        for sample, samples, rows, keys in parts:
            scores = torch.bmm(query[samples, rows], key[samples, keys].transpose(1, 2))
            by_sample = scores.unflatten(0, (-1, heads))
            if bias is not None:
                by_sample.add_(bias if lengths is None else bias[sample, :, :, keys])
            if masked_rows is not None:  # their softmax would be NaN
                by_sample.masked_fill_(masked_rows if lengths is None else masked_rows[sample], 0)
            drop = _draw(p, exact)
            dropped = simd.softmax_(scores, per_key, drop)
            torch.bmm(dropped, value[samples, keys], out=output[samples, rows])
            probabilities.append(scores)
            drops.append(drop)
        if masked_rows is not None:
            output.unflatten(0, (-1, heads)).masked_fill_(masked_rows, 0)
        ctx.save_for_backward(*saved, *probabilities)
        ctx.parts, ctx.scale, ctx.kept, ctx.heads, ctx.drops = parts, scale, kept, heads, drops
        ctx.per_key = per_key
        ctx.bias = (bias.shape, bias.dtype) if bias is not None else None
        return output if kept == 1 else output.mul_(kept)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, masked_rows, bias, *saved = ctx.saved_tensors
        if needs_torch(grad_output):
            formula = partial(_of_parts, ctx, saved)
            gradients = by_torch(formula, (query, key, value, bias), grad_output)
            return *gradients, *[None] * 7
        if ctx.kept != 1:
            grad_output = grad_output * ctx.kept
        if masked_rows is not None:
            of_samples = grad_output.unflatten(0, (-1, ctx.heads))
            grad_output = of_samples.masked_fill(masked_rows, 0).flatten(0, 1)
        grad_query = torch.empty_like(query)
        grad_key, grad_value = torch.zeros_like(key), torch.zeros_like(value)
        grad_bias = None
        parts = zip(ctx.parts, saved, ctx.drops, strict=True)
        for (_, samples, rows, keys), probabilities, drop in parts:
            grad = grad_output[samples, rows]
            dropped = probabilities if drop is None else simd.dropout(probabilities, drop)
            grad_value[samples, keys].baddbmm_(dropped.transpose(1, 2), grad)
            grad_scores = torch.bmm(grad, value[samples, keys].transpose(1, 2))
            simd.softmax_backward_(grad_scores, probabilities, ctx.per_key, drop)
            if ctx.needs_input_grad[3]:  # with a trained bias there is one part, see `masked`
                grad_bias = _sum_to(grad_scores.unflatten(0, (-1, ctx.heads)), *ctx.bias)
            torch.bmm(grad_scores, key[samples, keys], out=grad_query[samples, rows])
            grad_key[samples, keys].baddbmm_(
                grad_scores.transpose(1, 2), query[samples, rows], alpha=ctx.scale
            )
        return grad_query.mul_(ctx.scale), grad_key, grad_value, grad_bias, *[None] * 7


def _again(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    probabilities: torch.Tensor,
    scale: float,
    factors: torch.Tensor | float,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Recompute attention from its probabilities, so that autograd can differentiate the output.

    Args:
        query, key, value, probabilities: matrices, with the same leading dimensions.
        factors: factors by which dropout multiplies the probabilities.
        bias: term that is added to the scores and needs a gradient; None if there is none.
    """
    scores = scale * (query.float() @ key.float().mT)
    if bias is not None:
        scores = scores + bias
    seen = probabilities > 0
    # other terms of the scores have no gradients
    constant = (probabilities.float().clamp(min=TINY).log() - scores).detach()
    again = (scores + constant).masked_fill(~seen, MASKED).softmax(-1).masked_fill(~seen, 0)
    return ((again * factors) @ value.float()).to(query.dtype)


def _factors(drop: Drop | None, kept: float, *sizes: int) -> torch.Tensor | float:
    return kept if drop is None else simd.mask_of(drop, *sizes).mul_(kept)


def _of_heads(
    plan: attention_heads.Plan,
    probabilities: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """Return the result of `_HeadAttention`, computed by torch.

    Args:
        bias: term that is added to the scores and needs a gradient; None if there is none.
    """
    factors = _factors(plan.drop, plan.kept, probabilities.numel())

    def of_matrices(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, begin: int
    ) -> torch.Tensor:
        """Return the output of a group whose probabilities begin at `begin`."""
        sizes = (*query.shape[:-1], key.shape[-2])
        here = slice(begin, begin + math.prod(sizes))
        by = factors[here].view(sizes) if isinstance(factors, torch.Tensor) else factors
        return _again(query, key, value, probabilities[here].view(sizes), plan.scale, by, bias)

    if plan.documents is None:
        return of_matrices(query, key, value, 0)
    groups, begin, outputs = key.shape[1], 0, {}
    starts = list(accumulate(plan.documents, initial=0))
    # in `probabilities`, the longest sequences come first; queries that share keys form one matrix
    for i, length in sorted(enumerate(plan.documents), key=lambda document: -document[1]):
        tokens = slice(starts[i], starts[i + 1])
        shared = query[0, :, tokens].unflatten(0, (groups, -1)).transpose(1, 2)
        rows = shared.flatten(1, 2)
        output = of_matrices(rows, key[0, :, tokens], value[0, :, tokens], begin)
        outputs[i] = output.view(shared.shape).transpose(1, 2).flatten(0, 1)
        begin += rows.shape[0] * rows.shape[1] * length
    return torch.cat([outputs[i] for i in range(len(outputs))], 1).unsqueeze(0)


def _of_parts(
    ctx: Any,
    saved: Sequence[torch.Tensor],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """Return the result of `_Attention`, computed by torch."""
    if bias is not None:  # then there is one part, see `masked`
        bias = bias.expand(-1, ctx.heads, *saved[0].shape[1:])
        bias = bias.expand(len(query) // ctx.heads, -1, -1, -1).flatten(0, 1)
    outputs = [
        _again(
            query[samples, rows], key[samples, keys], value[samples, keys], probabilities,
            ctx.scale, _factors(drop, ctx.kept, *probabilities.shape), bias,
        )
        for (_, samples, rows, keys), probabilities, drop in zip(
            ctx.parts, saved, ctx.drops, strict=True
        )
    ]  # fmt: skip
    by_samples = outputs[0].shape[1] == query.shape[1]
    output = torch.cat(outputs, 0 if by_samples else 1)
    masked_rows = ctx.saved_tensors[3]
    if masked_rows is not None:
        output = output.unflatten(0, (-1, ctx.heads)).masked_fill(masked_rows, 0).flatten(0, 1)
    return output


def _by_torch(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: "Masked",
    causal: bool,
    scale: float,
    p: float,
) -> torch.Tensor:
    """Return the result of `attention`, computed with torch operations that transforms support."""
    scores = scale * (query.float() @ key.float().mT)
    queries, keys = scores.shape[-2:]
    if mask.bias is not None:
        scores = scores + mask.bias
    numbers = torch.arange(keys, dtype=torch.int64, device="cpu")
    if causal:
        rows = torch.arange(queries, dtype=torch.int64, device="cpu")
        last = keys - 1 - (queries - 1 - rows).div(queries // keys, rounding_mode="floor")
        scores = scores.masked_fill(numbers > last.unsqueeze(1), MASKED)
    elif mask.lengths is not None:
        lengths = torch.tensor(mask.lengths, dtype=torch.int64, device="cpu")
        scores = scores.masked_fill(numbers >= lengths.view(-1, 1, 1, 1), MASKED)
    if mask.rows is not None:
        scores = scores.masked_fill(mask.rows, 0)
    probabilities = torch.dropout(scores.softmax(-1), p, p > 0)
    if mask.rows is not None:
        probabilities = probabilities.masked_fill(mask.rows, 0)
    return (probabilities @ value.float()).to(query.dtype)


def _draw(p: float, exact: bool) -> Drop | None:
    if not p:
        return None
    return exact_drop_of(p, draw_seed()) if exact else drop_of(p, draw_seed())


def _sum_to(grad: torch.Tensor, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return the gradient of a broadcast tensor: `grad`, summed in fp32 to the tensor's shape."""
    dims = [i for i, size in enumerate(shape) if size != grad.shape[i]]
    if dims == [0] and grad.is_contiguous():  # torch would first convert all samples to fp32
        return simd.column_sums(grad.flatten(1)).view(shape).to(dtype)
    return (grad.sum(dims, keepdim=True, dtype=torch.float32) if dims else grad).to(dtype)


def _parts(
    queries: int, keys: int, heads: int, causal: bool, lengths: Sequence[int] | None
) -> Iterator[tuple[slice, slice, slice, slice]]:
    """Yield the parts to compute: slices of samples, of heads, of query rows, and of their keys.

    Without `lengths`, all samples together are one part.
    """
    if lengths is None:
        everything = slice(None)
        for rows, seen in _blocks(queries, keys, causal):
            yield everything, everything, rows, seen
        return
    for sample, length in enumerate(lengths):
        heads_of_sample = slice(sample * heads, (sample + 1) * heads)
        yield slice(sample, sample + 1), heads_of_sample, slice(0, queries), slice(0, length)


def _blocks(queries: int, keys: int, causal: bool) -> Iterator[tuple[slice, slice]]:
    """Yield query rows, and the keys that they attend to."""
    if not causal:
        yield slice(0, queries), slice(0, keys)
        return
    size, per_key = max(CAUSAL_BLOCK, keys // CAUSAL_BLOCKS), queries // keys
    for begin in range(0, keys, size):
        end = min(begin + size, keys)
        yield slice(begin * per_key, end * per_key), slice(0, end)


@dataclass(frozen=True)
class Masked:
    """A preprocessed attention mask.

    Attributes:
        values: copy of the mask's values, with which the next mask is compared; None if the mask
            needs a gradient. A tensor's version cannot replace the comparison, because writes
            through numpy, `data` or inference mode do not change the version.
        made_for: shapes and dtypes of the mask and the queries, and the number of keys.
        bias: term to add to the scores; None if only keys after `lengths` are masked.
        rows: True for query rows without any visible key, for which torch returns 0; None if there
            are no such rows.
        lengths: number of leading keys that the queries of each sample see; None if computing each
            sample alone does not pay.
    """

    values: torch.Tensor | None
    made_for: tuple[Any, ...]
    bias: torch.Tensor | None
    rows: torch.Tensor | None
    lengths: Sequence[int] | None


NO_MASK = Masked(None, (), None, None, None)


def masked(
    mask: torch.Tensor | None, query: torch.Tensor, keys: int, last: Masked, skips: bool = False
) -> Masked:
    """Return the preprocessed mask.

    Args:
        mask: mask with four dimensions, or None.
        last: previous result, which is returned again if the mask is unchanged.
        skips: True if skipping masked keys always pays, as in the loops of `attention_heads`.
    """
    if mask is None:
        return NO_MASK
    made_for = mask.dtype, mask.shape, mask.stride(), query.dtype, query.shape[:3], keys, skips
    if not mask.requires_grad:
        values = _without_copies(mask)
        previous = last.values if made_for == last.made_for else None
        if previous is not None and torch.equal(values, previous):
            return last
        values = values.clone()
        mask = values.expand(mask.shape)  # the copy, because the caller may change its mask
    hidden = mask.to(query.dtype).isneginf()  # fp32's minimum is -inf in bf16
    bias: torch.Tensor | None = mask
    if mask.dtype == torch.bool:
        hidden = ~mask
        bias = simd.zeros(*mask.shape, dtype=query.dtype).masked_fill_(hidden, MASKED)
    rows = hidden.all(-1, keepdim=True)
    lengths = None
    batch, heads, queries, _ = query.shape
    if mask.requires_grad:  # the backward pass returns the gradient of the scores as the mask's
        return Masked(None, made_for, mask, rows if rows.any() else None, None)
    if mask.shape[::3] == (batch, keys) and (skips or heads * queries * keys >= FEW_SCORES):
        seen = (~hidden).any(2).any(1)  # (batch, keys)
        numbers = torch.arange(keys, dtype=torch.int64, device="cpu")
        lengths = (seen * (numbers + 1)).amax(-1).clamp(min=1).tolist()
        if not skips and sum(lengths) > MANY_KEYS * batch * keys:
            lengths = None
        elif mask.dtype == torch.bool:
            ends = torch.tensor(lengths, dtype=torch.int64, device="cpu")
            behind = numbers >= ends.view(-1, 1, 1, 1)
            if not (hidden & ~behind).any():  # nothing else is masked
                bias = None
    return Masked(values, made_for, bias, rows if rows.any() else None, lengths)


def biased(
    mask: BiasedMask, query: torch.Tensor, keys: int, last: Masked, skips: bool
) -> tuple[Masked, Masked]:
    """Return a preprocessed mask with a bias, and the preprocessed mask without it for `last`.

    Args:
        mask, query, keys, last, skips: see `masked`.
    """
    seen = masked(mask.seen, query, keys, last, skips)
    # rows without a visible key attend to all keys, because the lowest number hides their scores
    if seen.rows is not None or not skips:
        return masked(mask.joined(), query, keys, NO_MASK), seen
    bias = mask.bias if seen.bias is None else mask.bias.to(query.dtype) + seen.bias
    return replace(seen, bias=bias), seen


def _without_copies(mask: torch.Tensor) -> torch.Tensor:
    """Return a mask's stored values, without the repetitions of expanded dimensions."""
    for dim, stride in enumerate(mask.stride()):
        if stride == 0 and mask.shape[dim] > 1:
            mask = mask.narrow(dim, 0, 1)
    return mask


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    mask: Masked = NO_MASK,
    causal: bool,
    scale: float | None,
    p: float,
    exact: bool,
) -> torch.Tensor:
    """Return softmax(scale * query @ key.T + bias) @ value, with dropout of the probabilities.

    Args:
        query, key, value: shapes (batch, heads, length, size), in one dtype: bf16 or fp32.
        causal: True if a query sees only its own and earlier keys; each key may have several
            consecutive queries.
        scale: factor for the scores; None means 1 / sqrt(size).
        p: dropout probability.
        exact: True to drop with exactly the probability `p`, see `dropout.drop_of`.
    """
    scale = _scale(query, scale)
    output: torch.Tensor
    with torch.autocast("cpu", enabled=False):
        if is_transformed():
            return _by_torch(query, key, value, mask, causal, scale, p)
        if attention_heads.takes(query, key, value):
            drop = _draw(p, exact)
            plan = attention_heads.Plan(
                query.shape[2] // key.shape[2] if causal else 0,
                mask.lengths, scale, 1 / (1 - p) if exact else 1.0, drop,
                has_backward=_needs_gradients(query, key, value, mask.bias),
            )  # fmt: skip
            output = _HeadAttention.apply(query, key, value, mask.bias, mask.rows, plan)
            return output
        heads = query.shape[1]
        output = _Attention.apply(
            *(x.flatten(0, 1) for x in (query, key, value)),
            mask.bias, mask.rows, heads, causal, mask.lengths, scale, p, exact,
        )  # fmt: skip
    return output.unflatten(0, (-1, heads))


def attention_of_documents(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lengths: Sequence[int],
    scale: float | None,
    p: float,
    exact: bool,
    causal: bool,
) -> torch.Tensor | None:
    """Return attention within each packed sequence of a row; None if no loop can compute it.

    Args:
        query, key, value: shapes (1, heads, total tokens, size); several query heads may share a
            key head.
        lengths: lengths of the packed sequences, in tokens.
        scale, p, exact, causal: see `attention`.
    """
    scale, kept = _scale(query, scale), 1 / (1 - p) if exact else 1.0
    if is_transformed() or not attention_heads.takes(query, key, value, lengths):
        return None
    drop = _draw(p, exact)
    needed = _needs_gradients(query, key, value)
    plan = attention_heads.Plan(int(causal), None, scale, kept, drop, lengths, needed)
    with torch.autocast("cpu", enabled=False):
        output: torch.Tensor = _HeadAttention.apply(query, key, value, None, None, plan)
    return output


def _needs_gradients(*tensors: torch.Tensor | None) -> bool:
    """Return True if autograd computes the gradient of any of these tensors."""
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def _scale(query: torch.Tensor, scale: float | None) -> float:
    return float(query.shape[-1] ** -0.5 if scale is None else scale)
