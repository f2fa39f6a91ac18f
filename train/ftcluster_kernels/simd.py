"""Calls loops in C over vector registers, for operations that torch does in several passes.

The loops are in the folder `native`; bench/notes/engine.md lists their speedups. Random data that
can be computed again, such as a dropout mask, is not kept for the backward pass. Unless stated
otherwise, values are bf16 or fp32, and all tensors of a call have the same dtype.
"""

import ctypes
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ftcluster_kernels.cpu import cpuinfo_field
from ftcluster_kernels.private_torch import has_memory

# flags of /proc/cpuinfo that each library needs; the fastest library comes first
LIBRARIES = {
    "libavx512.so": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "fma"},
    "libavx2.so": {"avx2", "fma"},
}
TYPES = {torch.bfloat16: 0, torch.float32: 1}  # see native/vectors.h
LONGEST = 4096  # maximum length of a row, see native/softmax.c
FEW_ELEMENTS = 1 << 14  # up to this size, one thread is faster than starting several threads
OPENMP = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")


# argument of a loop: an address, see `address`, or a number
Argument = ctypes.c_void_p | float | None


class Drop(NamedTuple):
    """The selection of dropped elements, and the factor for kept elements.

    Attributes:
        seed: seed of SplitMix64, 64 bits.
        threshold: minimum value of a kept element's lane. The lane of element k is lane k % 4 of
            word k // 4, an integer from -2^15 to 2^15 - 1.
        scale: factor for kept elements, in fp32.
    """

    seed: int
    threshold: int
    scale: float


KEEP_ALL = Drop(0, -(1 << 15), 1.0)


def library_path() -> Path | None:
    """Return the path of the library for this CPU; None without AVX2.

    The file does not exist if there was no C compiler. A limit that is set for torch's own loops,
    ATEN_CPU_CAPABILITY, also applies here.
    """
    flags, limit = set(cpuinfo_field("flags").split()), os.environ.get("ATEN_CPU_CAPABILITY")
    if limit in ("default", "avx2"):
        flags -= {"avx512f"} if limit == "avx2" else {"avx512f", "avx2"}
    file_name = next((name for name, needed in LIBRARIES.items() if flags >= needed), None)
    return Path(__file__).with_name(file_name) if file_name else None


def is_available() -> bool:
    """Return True if the loops can be called."""
    return loaded_library() is not None


def is_fit(*tensors: torch.Tensor | None) -> bool:
    """Return True if the loops can be called with these tensors after they are made contiguous."""
    return are_alike(*tensors) and is_available()


def are_alike(*tensors: torch.Tensor | None) -> bool:
    """Return True if all tensors are in memory and have the same dtype, which must be in TYPES."""
    dtype = None
    for x in tensors:
        if x is not None:
            dtype = dtype or x.dtype
            if x.dtype is not dtype or not is_in_memory(x):
                return False
    return dtype in TYPES


def is_in_memory(x: torch.Tensor) -> bool:
    """Return True if the elements of `x` are in this CPU's memory, unchanged and at its strides.

    The result is False for other devices and layouts, for batched gradients, and for negative
    views, whose sign is not in memory.
    """
    return x.is_cpu and x.layout is torch.strided and has_memory(x) and not x.is_neg()


def in_order(x: torch.Tensor) -> torch.Tensor:
    """Return the tensor, or a copy if its elements are not stored in order."""
    return x.resolve_neg().contiguous()


def empty(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return memory that a loop fills, independent of torch's default dtype and device."""
    return torch.empty(sizes, dtype=dtype, device="cpu")


def zeros(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return zeros that a loop adds to, independent of torch's default dtype and device."""
    return torch.zeros(sizes, dtype=dtype, device="cpu")


@cache
def loaded_library() -> ctypes.CDLL | None:
    """Return the loops for this CPU; None if they cannot be called."""
    path = library_path()
    return load(path) if path is not None and path.exists() else None


def load(path: Path) -> ctypes.CDLL | None:
    """Return the loops of a library; None if torch has no OpenMP threads for them."""
    library, openmp = ctypes.CDLL(str(path)), ctypes.CDLL(None)  # the OpenMP that torch has loaded
    try:
        functions = [ctypes.cast(getattr(openmp, name), ctypes.c_void_p) for name in OPENMP]
    except AttributeError:  # a torch that was built without OpenMP
        return None
    library.use_openmp(*functions)
    return library


def dropout(values: torch.Tensor, drop: Drop) -> torch.Tensor:
    """Return each element multiplied by 0 or by the scale of `drop`."""
    values = in_order(values)
    output, count = torch.empty_like(values), values.numel()
    _call_typed("dropout", values, typed(values, count), typed(output, count), count, *drop)
    return output


def mask_of(drop: Drop, *sizes: int) -> torch.Tensor:
    """Return dropout's factor for each element, in fp32."""
    ones = torch.ones(sizes, dtype=torch.float32, device="cpu")
    return dropout(ones, drop)


def softmax_(scores: torch.Tensor, per_key: int, drop: Drop | None) -> torch.Tensor:
    """Replace scores by their softmax over the last dimension; return the softmax with dropout.

    Args:
        scores: contiguous, shape (matrices, queries, keys) with at most LONGEST keys; contains the
            probabilities afterwards.
        per_key: number of query rows per key in causal attention: the last `per_key` queries see
            all keys, the `per_key` queries before them see one key fewer, and so on. 0 means that
            all queries see all keys.
        drop: dropped elements; None means no dropout.
    """
    dropped, count = scores if drop is None else torch.empty_like(scores), scores.numel()
    _call_typed("softmax", scores, typed(scores, count),
                None if drop is None else typed(dropped, count), *_sizes(scores, per_key),
                *(drop or KEEP_ALL))  # fmt: skip
    return dropped


def softmax_backward_(
    grad: torch.Tensor, probabilities: torch.Tensor, per_key: int, drop: Drop | None
) -> None:
    """Replace the gradient of the output of `softmax_` by the gradient of the scores.

    Args:
        grad: gradient, contiguous.
        probabilities: the probabilities that replaced `scores`.
    """
    count, dtype = grad.numel(), grad.dtype
    _call_typed("softmax_backward", grad, typed(grad, count), address(probabilities, dtype, count),
                *_sizes(grad, per_key), *(drop or KEEP_ALL), drop is not None)  # fmt: skip


def cross_entropy_(
    logits: torch.Tensor,
    targets: torch.Tensor,
    vocab_size: int,
    factors: torch.Tensor | None = None,
) -> torch.Tensor:
    """Replace logits by the gradients of their cross entropies; return the cross entropies in fp32.

    Args:
        logits: contiguous, shape (tokens, vocab_size or more columns).
        targets: shape (tokens,), int64.
        factors: factor for each token's gradients, fp32, shape (tokens,); None means 1.

    Raises:
        IndexError: a target is outside the vocabulary.
    """
    least, most = targets.aminmax()
    if least < 0 or most >= vocab_size:
        raise IndexError(f"targets must be from 0 to {vocab_size - 1}, got {least} to {most}")
    rows, columns = logits.shape
    totals, scores = empty(2, rows)
    targets, factors = targets.contiguous(), None if factors is None else in_order(factors)
    _call_typed("cross_entropy", logits, typed(logits, rows * columns),
                address(targets, torch.int64, rows),
                *(None if x is None else fp32(x, rows) for x in (factors, totals, scores)),
                rows, vocab_size, columns)  # fmt: skip
    return totals.log_() - scores


def activation(
    name: str,
    input: torch.Tensor,
    factor: torch.Tensor | None = None,
    drop: Drop | None = None,
) -> torch.Tensor:
    """Return an activation's output, times a factor, with dropout.

    Args:
        name: gelu, tanh_gelu, silu or relu.
        input: input; input and factor must be contiguous.
        drop: dropped elements of the output; None means no dropout.
    """
    output = torch.empty_like(input)
    _activate(name, drop, input, factor, None, output, None)
    return output


def activation_backward(
    name: str,
    grad: torch.Tensor,
    input: torch.Tensor,
    factor: torch.Tensor | None = None,
    drop: Drop | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the gradients of input and factor; all tensors must be contiguous."""
    output = torch.empty_like(input)
    of_factor = None if factor is None else torch.empty_like(input)
    _activate(name, drop, input, factor, grad, output, of_factor)
    return output, of_factor


def _activate(
    name: str, drop: Drop | None, input: torch.Tensor, *others: torch.Tensor | None
) -> None:
    count, dtype = input.numel(), input.dtype
    pointers = [None if x is None else address(x, dtype, count) for x in (input, *others)]
    _call_typed(name, input, *pointers, count, drop is not None, *(drop or KEEP_ALL))


def norm(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    epsilon: float,
    centered: bool,
    rounds: bool,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor]:
    """Compute LayerNorm over the last dimension, or RMSNorm if `centered` is False.

    Args:
        input, weight, bias: contiguous fp32; only LayerNorm has a bias.
        rounds: True to also return the output in bf16.

    Returns:
        The output in fp32; the output in bf16, or None; and for the backward pass the mean of each
        row (None for RMSNorm) and the inverse of its standard deviation.
    """
    output = torch.empty_like(input)
    rounded = torch.empty_like(input, dtype=torch.bfloat16) if rounds else None
    rows, columns = _rows(input)
    means, scales, count = empty(rows) if centered else None, empty(rows), rows * columns
    call("norm", input, fp32(input, count), fp32(weight, columns),
         None if bias is None else fp32(bias, columns), fp32(output, count),
         None if rounded is None else address(rounded, torch.bfloat16, count),
         None if means is None else fp32(means, rows), fp32(scales, rows), rows, columns,
         float(epsilon))  # fmt: skip
    return output, rounded, means, scales


def norm_backward(
    input: torch.Tensor,
    weight: torch.Tensor,
    grad: torch.Tensor | None,
    rounded_grad: torch.Tensor | None,
    means: torch.Tensor | None,
    scales: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of input, weight and bias, in fp32.

    Args:
        grad, rounded_grad: contiguous gradients of the fp32 output and of the bf16 output; None if
            an output has no gradient.
    """
    output, (rows, columns) = torch.empty_like(input), _rows(input)
    threads, count = threads_for(input), rows * columns
    sums = zeros(threads, 2, columns)
    call("norm_backward", input, fp32(input, count), fp32(weight, columns),
         None if grad is None else fp32(grad, count),
         None if rounded_grad is None else address(rounded_grad, torch.bfloat16, count),
         None if means is None else fp32(means, rows), fp32(scales, rows), fp32(output, count),
         fp32(sums, threads * 2 * columns), rows, columns)  # fmt: skip
    of_weight, of_bias = sums.sum(0)
    return output, of_weight, of_bias


def rotary(
    values: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, back: bool
) -> torch.Tensor:
    """Return vectors rotated by the positions of their tokens.

    Args:
        values: contiguous, shape (batch, tokens, heads, size).
        cosines, sines: contiguous fp32, shape (1 or batch, tokens, size).
        back: True for the backward pass, which rotates in the opposite direction.
    """
    output = torch.empty_like(values)
    batch, tokens, heads, size = values.shape
    count, angles = values.numel(), cosines.shape[0] * tokens
    _call_typed("rotary", values, typed(values, count), typed(output, count),
                fp32(cosines, angles * size), fp32(sines, angles * size), batch * tokens,
                angles, heads, size // 2, back)  # fmt: skip
    return output


def adamw_(
    weights: torch.Tensor,
    gradients: torch.Tensor,
    means: torch.Tensor,
    squares: torch.Tensor,
    copy: torch.Tensor | None,
    numbers: Sequence[float],
) -> None:
    """Apply a step of AdamW in place.

    Args:
        weights, gradients: fp32; all tensors must be contiguous.
        means, squares: the states exp_avg and exp_avg_sq of torch's AdamW.
        copy: bf16 copy of the weights, which is also updated; None if there is no copy.
        numbers: see `Numbers` in native/adamw.c.
    """
    count = weights.numel()
    call("adamw", weights, *(fp32(x, count) for x in (weights, gradients, means, squares)),
         None if copy is None else address(copy, torch.bfloat16, count), count,
         *numbers)  # fmt: skip


def widen(input: torch.Tensor, output: torch.Tensor) -> None:
    """Convert bf16 to fp32; the writes bypass the caches.

    Args:
        input: contiguous.
        output: contiguous, aligned to a cache line.
    """
    count = input.numel()
    call("widen", input, address(input, torch.bfloat16, count), fp32(output, count), count)


def column_sums(rows: torch.Tensor) -> torch.Tensor:
    """Return the sum of contiguous rows in fp32, shape (columns,)."""
    threads, (count, columns) = threads_for(rows), rows.shape
    sums = zeros(threads, columns)
    _call_typed("column_sums", rows, typed(rows, count * columns), fp32(sums, threads * columns),
                count, columns)  # fmt: skip
    total: torch.Tensor = sums.sum(0)
    return total


def _sizes(scores: torch.Tensor, per_key: int) -> Sequence[int]:
    return *_rows(scores), scores.shape[-2], per_key


def _rows(values: torch.Tensor) -> tuple[int, int]:
    """Return the number of rows and of columns."""
    columns = values.shape[-1]
    return values.numel() // columns if columns else 0, columns


def threads_for(values: torch.Tensor) -> int:
    """Return the number of threads for a call with this first argument."""
    return torch.get_num_threads() if values.numel() > FEW_ELEMENTS else 1


def address(x: torch.Tensor, dtype: torch.dtype, count: int) -> ctypes.c_void_p:
    """Return the address of a tensor that C reads or fills.

    Tensors are passed to C only through this function. Each call states the dtype and the number of
    elements that its loop expects.

    Args:
        dtype, count: dtype and number of consecutive elements that C expects.

    Raises:
        ValueError: C would read or write memory outside the tensor's elements.
    """
    if not x.is_contiguous():  # C does not get the strides
        raise ValueError(
            f"expected a contiguous tensor, got shape {tuple(x.shape)} with strides {x.stride()}"
        )
    fits = x.dtype is dtype and x.numel() == count and x.is_cpu and not x.is_neg()
    # torch raises an error for a tensor without memory, such as a sparse or a batched one
    place = x.data_ptr() if fits else 0
    if not place and (count or not fits):
        kind = f"{x.dtype} on {x.device}{', a negative view' if x.is_neg() else ''}"
        raise ValueError(
            f"expected {count} elements of {dtype} in memory, got shape {tuple(x.shape)} of {kind}"
        )
    return ctypes.c_void_p(place)


def fp32(x: torch.Tensor, count: int) -> ctypes.c_void_p:
    """Return the address of elements in fp32, see `address`."""
    return address(x, torch.float32, count)


def typed(x: torch.Tensor, count: int) -> ctypes.c_void_p:
    """Return the address of elements in the tensor's dtype, see `address`."""
    return address(x, x.dtype, count)


def _call_typed(name: str, first: torch.Tensor, *arguments: Argument) -> None:
    """Call the version of a loop for the dtype of `first`, which must be in TYPES."""
    call(name, first, *arguments, types=(TYPES[first.dtype],))


def call(name: str, largest: torch.Tensor, *arguments: Argument, types: Sequence[int] = ()) -> None:
    """Call a loop.

    Args:
        largest: tensor whose size determines the number of threads.
        arguments: arguments of the loop, between `types` and the number of threads.
    """
    library = loaded_library()
    assert library is not None
    in_c = map(_in_c, (*types, *arguments))
    getattr(library, name)(*in_c, ctypes.c_int(threads_for(largest)))


def _in_c(argument: Argument) -> Any:
    if argument is None:
        return ctypes.c_void_p(None)
    if isinstance(argument, ctypes.c_void_p):
        return argument
    return ctypes.c_float(argument) if isinstance(argument, float) else ctypes.c_uint64(argument)
