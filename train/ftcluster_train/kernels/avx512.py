"""Dropout and softmax in one pass over memory, from avx512.c.

torch makes a mask in fourteen passes, and needs others for softmax and for each product with the
mask. On two cores of an AMD EPYC the loops of avx512.c take a sixth of the time of dropout and a
third of that of softmax with dropout; see docs/engine.md. They keep no mask for the backward pass,
but draw it again.
"""

import ctypes
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


def _rows_and_columns(values: torch.Tensor) -> list[int]:
    columns = values.shape[-1]
    return [values.numel() // columns if columns else 0, columns]


def _call(name: str, tensors: list[torch.Tensor], sizes: list[int], drop: Drop) -> None:
    library = _library()
    assert library is not None
    threads = torch.get_num_threads() if tensors[0].numel() > FEW_ELEMENTS else 1
    getattr(library, name)(
        *(ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors),
        *map(ctypes.c_int64, sizes),
        ctypes.c_uint64(drop.seed),
        ctypes.c_int(drop.threshold),
        ctypes.c_float(drop.scale),
        ctypes.c_int(threads),
    )
