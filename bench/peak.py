"""What multiply-adds of this CPU reach at most, and what part of it products of matrices do.

    PYTHONPATH=.:train:common PREFIX/current/bin/python -m bench.peak [--threads N] [--turns N]
        [--results FILE]

from the repository's root, with the Python of a stack. A row for each instruction set: a loop in C
of registers that wait for nothing (native/peak.c), and torch's products of the shapes of MRPC's
DistilBERT; with AMX also the gradients of weights by tiles of our own. The best of all turns: other
work and the CPU's clock only take away. CPUs compute slower while tiles are new to them, so each
is warmed up.
"""

import argparse
import ctypes
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ftcluster_train.io.machine import cpuinfo_field
from ftcluster_train.kernels import simd

KERNELS = Path(simd.__file__).parent
ROWS, SHAPES = 1760, ((768, 768), (3072, 768), (768, 3072))  # outputs and inputs of the layers
ROUNDS, SECONDS = 20_000, 0.2


@dataclass(frozen=True)
class Loop:
    """A loop of native/peak.c.

    Attributes:
        kind: its number there.
        operations: of a round, multiplications and additions.
        dtype: that its products have in torch.
    """

    library: str
    kind: int
    operations: int
    dtype: torch.dtype


LOOPS = {
    "amx_bf16": Loop("libavx512.so", 2, 4 * 16 * 16 * 32 * 2, torch.bfloat16),
    "avx512_bf16": Loop("libavx512.so", 1, 12 * 16 * 2 * 2, torch.bfloat16),
    "avx512f": Loop("libavx512.so", 0, 12 * 16 * 2, torch.float32),
    "avx2": Loop("libavx2.so", 0, 12 * 8 * 2, torch.float32),
}


def main() -> int:
    """Measure, print the table and write the results; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    here = [name for name in LOOPS if name in cpuinfo_field("flags").split()]
    if "amx_bf16" in here and not simd.has_amx():
        here.remove("amx_bf16")
    peaks = {name: rate(LOOPS[name], options.threads, options.turns) for name in here}
    results: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"), "cpu": cpuinfo_field("model name"),
        "threads": options.threads, "torch": torch.__version__, "peaks": peaks, "products": {},
    }  # fmt: skip
    for dtype in (torch.bfloat16, torch.float32):
        if dtype == torch.float32 or {"amx_bf16", "avx512_bf16"} & {*here}:
            found = products(dtype, options.turns)
            results["products"][str(dtype).removeprefix("torch.")] = found
    print(table(results))
    if options.results:
        options.results.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


def rate(loop: Loop, threads: int, turns: int) -> float:
    """Operations per second of a loop on so many threads."""
    library, openmp = ctypes.CDLL(str(KERNELS / loop.library)), ctypes.CDLL(None)
    library.use_openmp(
        *(ctypes.cast(getattr(openmp, name), ctypes.c_void_p) for name in simd.OPENMP)
    )
    numbers, sums = torch.randn(1024), torch.empty(1024 * threads)

    def turn() -> None:
        library.peak(
            ctypes.c_uint64(loop.kind), ctypes.c_void_p(numbers.data_ptr()),
            ctypes.c_void_p(sums.data_ptr()), ctypes.c_uint64(ROUNDS), ctypes.c_int(threads),
        )  # fmt: skip

    return ROUNDS * loop.operations * threads / best(turn, turns)


def best(function: Callable[[], Any], turns: int) -> float:
    """The least seconds of a call, in so many turns of SECONDS after one more."""
    least = float("inf")
    end = time.perf_counter() + SECONDS * (turns + 1)
    while time.perf_counter() < end:
        began = time.perf_counter()
        function()
        least = min(least, time.perf_counter() - began)
    return least


def products(dtype: torch.dtype, turns: int) -> dict[str, dict[str, float]]:
    """Operations per second by shape and kind of product."""
    found = {}
    for outputs, inputs in SHAPES:
        x, w, g = (
            torch.randn(*shape).to(dtype)
            for shape in ((ROWS, inputs), (outputs, inputs), (ROWS, outputs))
        )
        sums = torch.empty(outputs, inputs)
        kinds: dict[str, Callable[[], Any]] = {
            "output": lambda x=x, w=w: torch.nn.functional.linear(x, w),
            "gradient of the input": lambda g=g, w=w: g @ w,
            "gradient of the weight": lambda g=g, x=x: g.T @ x,
        }
        if dtype == torch.bfloat16 and simd.has_amx():
            kinds["gradient of the weight, our tiles"] = lambda g=g, x=x, sums=sums: (
                simd.weight_gradient_(g, x, sums, adds=False)
            )
        work = 2.0 * ROWS * outputs * inputs
        found[f"{ROWS} x {inputs} x {outputs}"] = {
            name: work / best(function, turns) for name, function in kinds.items()
        }
    return found


def table(results: dict[str, Any]) -> str:
    """The rates in TFLOP/s as Markdown, products with their part of the highest peak."""
    lines = ["| instructions | peak, TFLOP/s |", "|---|---|"]
    peaks = results["peaks"]
    lines += [f"| {name} | {value / 1e12:.3f} |" for name, value in peaks.items()]
    for dtype, found in results["products"].items():
        able = [
            value
            for name, value in peaks.items()
            if (LOOPS[name].dtype == torch.bfloat16) == (dtype == "bfloat16")
        ]
        kinds = next(iter(found.values()))
        lines += ["", f"| {dtype} | {' | '.join(kinds)} |", "|---" * (len(kinds) + 1) + "|"]
        for shape, rates in found.items():
            cells = (f"{r / 1e12:.3f}, {r / max(able):.0%}" for r in rates.values())
            lines.append(f"| {shape} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
