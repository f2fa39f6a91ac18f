"""The peak FLOP rate of this CPU's multiply-adds, measured by loops over registers without stalls.

Matrix multiplications stay below this peak; the gap shows whether their kernels suit the CPU.
"""

import ctypes
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftcluster_kernels import simd
from ftcluster_kernels.cpu import cpuinfo_field
from ftcluster_kernels.products import has_amx

KERNELS = Path(simd.__file__).parent
ROUNDS = 20_000  # about 0.5 ms to 5 ms


@dataclass(frozen=True)
class Loop:
    """A loop of native/peak.c.

    Attributes:
        kind: number of the loop in native/peak.c.
        operations: number of multiplications and additions in a round of the loop.
        bf16: True if the loop multiplies bf16 values, False for fp32.
    """

    library: str
    kind: int
    operations: int
    bf16: bool


LOOPS = {
    "amx_bf16": Loop("libavx512.so", 2, 4 * 16 * 16 * 32 * 2, True),
    "avx512_bf16": Loop("libavx512.so", 1, 12 * 16 * 2 * 2, True),
    "avx512f": Loop("libavx512.so", 0, 12 * 16 * 2, False),
    "avx2": Loop("libavx2.so", 0, 12 * 8 * 2, False),
}


def instruction_sets() -> list[str]:
    """Return the names of LOOPS that run here, the fastest first."""
    here = [name for name in LOOPS if name in cpuinfo_field("flags").split()]
    if "amx_bf16" in here and not has_amx():  # needs the kernel's permission
        here.remove("amx_bf16")
    return [name for name in here if (KERNELS / LOOPS[name].library).exists()]


def peak_rate(name: str, threads: int, seconds: float) -> float:
    """Return a loop's operations per second on `threads` threads, the best rate in `seconds`.

    The first rounds rarely count, because a CPU is slower when it starts to use AMX tiles.
    """
    import torch

    loop = LOOPS[name]
    library, openmp = ctypes.CDLL(str(KERNELS / loop.library)), ctypes.CDLL(None)
    functions = (getattr(openmp, function) for function in simd.OPENMP)
    library.use_openmp(*(ctypes.cast(function, ctypes.c_void_p) for function in functions))
    # random values, because a CPU runs faster on zeros, which take less power
    numbers, sums = torch.randn(1024), torch.empty(1024 * threads)

    def turn() -> None:
        library.peak(
            ctypes.c_uint64(loop.kind), ctypes.c_void_p(numbers.data_ptr()),
            ctypes.c_void_p(sums.data_ptr()), ctypes.c_uint64(ROUNDS), ctypes.c_int(threads),
        )  # fmt: skip

    return ROUNDS * loop.operations * threads / best_seconds(turn, seconds)


def best_seconds(function: Callable[[], Any], seconds: float) -> float:
    """Return the shortest time of a call, over all calls that fit into `seconds`."""
    least, end = math.inf, time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        function()
        least = min(least, time.perf_counter() - began)
    return least
