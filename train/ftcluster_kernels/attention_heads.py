"""Computes attention with each thread working on one head of one sample at a time.

For bf16, the loops use AMX tiles if the CPU has them, otherwise multiply-adds with AVX512-BF16. For
fp32, they use multiply-adds.

The scores of a head stay in a core's cache. Loops read and write vectors in the memory layout of
the surrounding layers, without copies.
"""

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ftcluster_kernels import simd
from ftcluster_kernels.products import MULTIPLE, adds_bf16, has_amx
from ftcluster_kernels.simd import KEEP_ALL, Drop

LONGEST = 1024  # maximum number of keys, see native/heads.h
LARGEST = 1 << 22  # maximum scores of a head; two buffers per thread take 16 MB (fp32: 32 MB)
LINE = 64  # bytes of a cache line


class _Vectors(ctypes.Structure):
    _fields_ = (
        ("at", ctypes.c_void_p),
        *((f"{x}_stride", ctypes.c_int64) for x in ("sample", "head", "row")),
    )


class _Drop(ctypes.Structure):
    _fields_ = (
        ("seed", ctypes.c_uint64), ("threshold", ctypes.c_int32), ("scale", ctypes.c_float),
    )  # fmt: skip


class _Heads(ctypes.Structure):
    """The C struct `Heads` of native/heads.h."""

    _fields_ = (
        *((name, _Vectors) for name in ("query", "key", "value", "output")),
        *((name, _Vectors) for name in ("of_output", "of_query", "of_key", "of_value")),
        ("probabilities", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("bias_sample", "bias_head", "bias_row")),
        ("of_bias", ctypes.c_void_p),
        ("lengths", ctypes.c_void_p),
        *((name, ctypes.c_void_p) for name in ("hidden", "starts", "places")),
        *((name, ctypes.c_int64) for name in ("samples", "heads", "queries", "keys", "size")),
        ("per_key", ctypes.c_int64),
        ("causal", ctypes.c_int64),
        ("scale", ctypes.c_float),
        ("kept", ctypes.c_float),
        ("drops", ctypes.c_int64),
        ("drop", _Drop),
        ("own", ctypes.c_void_p),
        ("own_bytes", ctypes.c_int64),
        ("next", ctypes.c_void_p),
    )


class Plan(NamedTuple):
    """Options that the forward and the backward pass share.

    Attributes:
        per_key: number of query rows per key in causal attention: the last `per_key` queries see
            all keys, the `per_key` queries before them see one key fewer, and so on. 0 means that
            all queries see all keys. With packed sequences: 1 if causal, else 0.
        lengths: number of leading keys that the queries of each sample see; None means all.
        scale: factor for the scores.
        kept: factor for the output that compensates for dropped probabilities.
        drop: dropout of the probabilities, or None.
        documents: lengths of packed sequences, or None if each sample is one sequence. A token sees
            no tokens of other sequences.
        has_backward: False if no backward pass follows, so that no probabilities are kept.
    """

    per_key: int
    lengths: Sequence[int] | None
    scale: float
    kept: float
    drop: Drop | None
    documents: Sequence[int] | None = None
    has_backward: bool = True


def takes(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    documents: Sequence[int] | None = None,
) -> bool:
    """Return True if the loops support tensors of shape (samples, heads, length, size).

    Args:
        documents: see `Plan`; with packed sequences, several query heads may share a key head.
    """
    (samples, heads, queries, size), (_, of_keys, keys, _) = query.shape, key.shape
    # torch refuses other shapes, and C would read beyond their end
    fits = key.shape == value.shape == (samples, of_keys, keys, size) and not size % MULTIPLE
    if documents is None:
        fits = fits and heads == of_keys
    else:
        fits = fits and min(heads, of_keys, *documents) > 0 and not heads % of_keys
        fits = fits and samples == 1 and sum(documents) == queries == keys
        keys = max(documents)
        queries = keys * heads // max(of_keys, 1)
    fits = fits and simd.are_alike(query, key, value)
    fits = fits and 0 < keys <= LONGEST and 0 < queries * keys <= LARGEST
    return fits and _has_loop(query.dtype)


def _has_loop(dtype: torch.dtype) -> bool:
    if dtype == torch.float32:
        return simd.is_available()
    return dtype == torch.bfloat16 and (has_amx() or adds_bf16())


def forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    hidden: torch.Tensor | None,
    plan: Plan,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output, and the probabilities of all samples as a vector in `query`'s dtype.

    The vector is empty if the plan has no backward pass.

    Args:
        query, key, value: bf16 or fp32, shape (samples, heads, length, size), with a contiguous
            last dimension.
        bias: term to add to the scores, with a shape that can be expanded to the shape of the
            scores.
        hidden: True for queries that see no key, so that their output is 0; can be expanded like
            `bias`, with a last dimension of 1. None if there are no such queries.
    """
    (samples, heads, queries, _), keys = query.shape, key.shape[2]
    count = _count_of(query, key, plan) if plan.has_backward else 0
    probabilities, output = query.new_empty(count), empty_by_token(query)
    call, kept_alive = _call_of(query, key, value, probabilities, plan)
    call.output = _vectors(output, query.dtype)
    if bias is not None:
        bias = bias.to(query.dtype).expand(*bias.shape[:3], keys)
        # T5's bias has its heads in the last place; a copy after `expand` would have all samples
        bias = with_rows(bias).expand(samples, heads, queries, keys)
        rows = _vectors(bias, query.dtype)
        call.bias, call.bias_sample, call.bias_head, call.bias_row = (
            rows.at, rows.sample_stride, rows.head_stride, rows.row_stride,
        )  # fmt: skip
    if hidden is not None:
        hidden = hidden.expand(samples, heads, queries, 1).contiguous()
        call.hidden = simd.address(hidden, torch.bool, samples * heads * queries)
    _run(call, query, back=False)
    del kept_alive
    return output, probabilities


def backward(
    grad: torch.Tensor,
    probabilities: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    plan: Plan,
    of_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of query, key and value.

    Args:
        of_bias: empty tensor like `probabilities`, which gets the gradients of all scores; None if
            no bias needs them.
        grad: gradient of the output.
        probabilities: probabilities that `forward` returned. The other arguments must be equal to
            the arguments of `forward`.
    """
    gradients = empty_by_token(query), empty_by_token(key), empty_by_token(value)
    call, kept_alive = _call_of(query, key, value, probabilities, plan)
    call.of_output = _vectors(grad, query.dtype)
    if of_bias is not None:
        call.of_bias = simd.address(of_bias, query.dtype, probabilities.numel())
    call.of_query, call.of_key, call.of_value = (_vectors(x, query.dtype) for x in gradients)
    _run(call, query, back=True)
    del kept_alive
    return gradients


def with_rows(x: torch.Tensor) -> torch.Tensor:
    """Return the tensor if its last dimension is contiguous, otherwise a contiguous copy."""
    return x if x.stride(3) == 1 and not x.is_neg() else simd.in_order(x)


def empty_by_token(x: torch.Tensor) -> torch.Tensor:
    """Return an empty tensor of `x`'s shape that stores all heads of a token next to each other."""
    samples, heads, length, size = x.shape
    return x.new_empty(samples, length, heads, size).transpose(1, 2)


def _vectors(x: torch.Tensor, dtype: torch.dtype) -> _Vectors:
    """Return the address and strides of a tensor's vectors, for C.

    Raises:
        ValueError: C would read or write memory outside the tensor's elements.
    """
    *strides, apart = x.stride()
    if x.dtype is not dtype or (apart != 1 and x.shape[3] > 1) or not simd.is_in_memory(x):
        raise ValueError(
            f"expected {dtype} in CPU memory with a contiguous last dimension, got {x.dtype} with "
            f"strides {x.stride()} and layout {x.layout} on {x.device}"
        )
    return _Vectors(x.data_ptr(), *strides)


def _call_of(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    probabilities: torch.Tensor,
    plan: Plan,
) -> tuple[_Heads, Any]:
    """Return the C function's argument, and the tensors that must stay alive during the call."""
    drop, dtype = plan.drop or KEEP_ALL, query.dtype
    stored = None
    if plan.has_backward:
        stored = simd.address(probabilities, dtype, _count_of(query, key, plan))
    call = _Heads(
        *(_vectors(x, dtype) for x in (query, key, value)),
        probabilities=stored,
        samples=query.shape[0], heads=query.shape[1], queries=query.shape[2], keys=key.shape[2],
        size=query.shape[3], per_key=plan.per_key, causal=plan.per_key > 0, scale=plan.scale,
        kept=plan.kept, drops=plan.drop is not None,
        drop=_Drop(drop.seed % (1 << 64), drop.threshold, drop.scale),
    )  # fmt: skip
    lengths = None if plan.lengths is None else _integers(plan.lengths)
    if plan.documents is None:
        call.lengths = None if lengths is None else _address(lengths, len(query))
        return call, lengths
    # the longest sequences come first, because each free thread takes the next sequence
    tokens = _integers(plan.documents)
    lengths, order = tokens.sort(descending=True, stable=True)
    starts = (tokens.cumsum(0) - tokens)[order]
    scores = lengths.square() * query.shape[1]
    places = scores.cumsum(0) - scores
    call.samples, call.heads, call.keys = len(lengths), key.shape[1], int(lengths[0])
    call.per_key = query.shape[1] // key.shape[1]
    call.queries = call.keys * call.per_key
    call.lengths, call.starts, call.places = (
        _address(x, len(plan.documents)) for x in (lengths, starts, places)
    )
    return call, (lengths, starts, places)


def _count_of(query: torch.Tensor, key: torch.Tensor, plan: Plan) -> int:
    """Return the number of probabilities."""
    samples, heads, queries, _ = query.shape
    of_head: int = samples * queries * key.shape[2]
    if plan.documents is not None:
        of_head = sum(length * length for length in plan.documents)
    return of_head * int(heads)


def _integers(values: Sequence[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device="cpu")


def _address(integers: torch.Tensor, count: int) -> ctypes.c_void_p:
    return simd.address(integers, torch.int64, count)


def _run(call: _Heads, query: torch.Tensor, back: bool) -> None:
    library, threads = simd.loaded_library(), simd.threads_for(query)
    assert library is not None
    by_tiles = query.dtype == torch.bfloat16 and has_amx()
    size_of, run = (
        (library.heads_bytes, library.heads)
        if by_tiles
        else (library.heads_fma_bytes, library.heads_fma)
    )
    size_of.restype = ctypes.c_int64
    call.own_bytes = size_of(ctypes.byref(call))
    own = simd.empty(threads * call.own_bytes + LINE, dtype=torch.uint8)
    call.own = own.data_ptr() + -own.data_ptr() % LINE
    kind = () if by_tiles else (simd.TYPES[query.dtype],)
    run(ctypes.byref(call), int(back), *kind, threads)
