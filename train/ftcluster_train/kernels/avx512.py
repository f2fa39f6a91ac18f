"""Dropout, softmax and cross entropy in few passes over memory, from avx512.c.

torch makes a mask in fourteen passes, and needs others for softmax and for each product with the
mask. On two cores of an AMD EPYC the loops of avx512.c take a sixth of the time of dropout and a
third of that of softmax with dropout; see docs/engine.md. They keep no mask for the backward pass,
but draw it again. Cross entropy over a vocabulary takes torch nine passes.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from ftcluster_train.io.cpu import cpuinfo_field

LIBRARY = Path(__file__).with_name("libavx512.so")
FLAGS = {"avx512f", "avx512bw", "avx512dq", "avx512vl", "fma"}  # of /proc/cpuinfo
LONGEST = 4096  # of a row, see avx512.c
FEW_ELEMENTS = 1 << 14  # on one thread: others would take longer to start
OPENMP = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")


class Drop(NamedTuple):
    """Which elements are dropped, and by what the others are multiplied.

    Attributes:
        seed: of SplitMix64, 64 bits.
        threshold: element k is kept if lane k % 4 of word k // 4, a number from -2^15 to
            2^15 - 1, is not less.
        scale: a number of fp32.
    """

    seed: int
    threshold: int
    scale: float


def is_supported() -> bool:
    """Whether this CPU has AVX-512."""
    return set(cpuinfo_field("flags").split()) >= FLAGS


def is_available() -> bool:
    """Whether it has, and the package was built with a C compiler."""
    return _library() is not None


@cache
def _library() -> ctypes.CDLL | None:
    if not LIBRARY.exists() or not is_supported():
        return None
    library, openmp = ctypes.CDLL(str(LIBRARY)), ctypes.CDLL(None)  # what torch has loaded
    try:
        functions = [ctypes.cast(getattr(openmp, name), ctypes.c_void_p) for name in OPENMP]
    except AttributeError:  # a torch that was built without OpenMP
        return None
    library.use_openmp(*functions)
    return library


def dropout(values: torch.Tensor, drop: Drop) -> torch.Tensor:
    """Each element times 0 or the scale; `values` is bf16 or fp32."""
    values = values.contiguous()
    output = torch.empty_like(values)
    name = "dropout_bf16" if values.dtype == torch.bfloat16 else "dropout_fp32"
    _call(name, [values, output], [values.numel()], drop)
    return output


def softmax_dropout_(scores: torch.Tensor, drop: Drop) -> torch.Tensor:
    """Replace scores by their softmax over the last dimension; returns that with dropout.

    Args:
        scores: contiguous bf16, with at most LONGEST columns; probabilities afterwards.
    """
    dropped = torch.empty_like(scores)
    _call("softmax_dropout", [scores, dropped], _rows_and_columns(scores), drop)
    return dropped


def softmax_dropout_backward_(grad: torch.Tensor, probabilities: torch.Tensor, drop: Drop) -> None:
    """Replace the gradient of what `softmax_dropout_` returned by that of its scores.

    Args:
        grad: contiguous bf16.
        probabilities: what `scores` were replaced by.
    """
    _call("softmax_dropout_backward", [grad, probabilities], _rows_and_columns(grad), drop)


def cross_entropy_(
    logits: torch.Tensor,
    targets: torch.Tensor,
    vocab_size: int,
    factors: torch.Tensor | None = None,
) -> torch.Tensor:
    """Replace logits by the gradients of their cross entropies; returns those, in fp32.

    Args:
        logits: contiguous bf16, shape (tokens, vocab_size or more columns).
        targets: shape (tokens,), int64.
        factors: of the gradients of each token, shape (tokens,), fp32.

    Raises:
        IndexError: a target is none of the columns.
    """
    least, most = targets.aminmax()
    if least < 0 or most >= vocab_size:
        raise IndexError(f"targets {least} to {most} of {vocab_size} columns")
    totals, scores = torch.empty(2, len(logits))
    others = [None if one is None else one.contiguous() for one in (targets, factors)]
    _call("cross_entropy", [logits, *others, totals, scores],
          [len(logits), vocab_size, logits.shape[1]])  # fmt: skip
    return totals.log_() - scores


def _rows_and_columns(values: torch.Tensor) -> list[int]:
    columns = values.shape[-1]
    return [values.numel() // columns if columns else 0, columns]


def _call(
    name: str, tensors: Sequence[torch.Tensor | None], sizes: list[int], drop: Drop | None = None
) -> None:
    library = _library()
    assert library is not None
    first = tensors[0]
    threads = torch.get_num_threads() if first is not None and first.numel() > FEW_ELEMENTS else 1
    dropped = () if drop is None else (
        ctypes.c_uint64(drop.seed), ctypes.c_int(drop.threshold), ctypes.c_float(drop.scale)
    )  # fmt: skip
    getattr(library, name)(
        *(ctypes.c_void_p(None if one is None else one.data_ptr()) for one in tensors),
        *map(ctypes.c_int64, sizes),
        *dropped,
        ctypes.c_int(threads),
    )
