"""The CPU's peak rate of multiply-adds, and the share of it that matmuls reach.

    PYTHONPATH=.:train:common PREFIX/current/bin/python -m bench.peak [--threads N] [--turns N]
        [--results FILE]

from the repository's root, with the Python of a stack. The table has a row for each instruction
set: a C loop over registers without stalls (native/peak.c), torch's matmuls with the shapes of
MRPC's DistilBERT, and the same matmuls by our own loops on AMX tiles and multiply-adds. The best of
all turns counts, because other work and a lower clock only make a turn slower. Each loop is warmed
up, because CPUs are slower when they begin to use tiles.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench.machines import cpu
from ftcluster_kernels import products, simd
from ftcluster_train.health.peak import LOOPS, best_seconds, instruction_sets, peak_rate

ROWS, SHAPES = 1760, ((768, 768), (3072, 768), (768, 3072))  # outputs and inputs of the layers
SECONDS = 0.2  # seconds per turn


def main() -> int:
    """Measure, print the table and write the results; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    seconds = SECONDS * (options.turns + 1)
    peaks = {name: peak_rate(name, options.threads, seconds) for name in instruction_sets()}
    results: dict[str, Any] = {
        "machine": {**cpu(), "threads": options.threads, "versions": {"torch": torch.__version__}},
        "peaks": peaks, "products": {},
    }  # fmt: skip
    for dtype in (torch.bfloat16, torch.float32):
        if dtype == torch.float32 or any(LOOPS[name].bf16 for name in peaks):
            found = rates(dtype, seconds)
            results["products"][str(dtype).removeprefix("torch.")] = found
    print(table(results))
    if options.results:
        options.results.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


def rates(dtype: torch.dtype, seconds: float) -> dict[str, dict[str, float]]:
    """Return the operations per second by shape and kind of matmul."""
    found = {}
    tiles = dtype == torch.bfloat16 and products.has_amx()
    by_fma = dtype in products.fma_dtypes() or (dtype == torch.float32 and simd.is_available())
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
        if tiles:
            kinds |= {
                "output, our tiles": lambda x=x, w=w: products.product(x, w.T),
                "gradient of the input, our tiles": lambda g=g, w=w: products.product(g, w),
                "gradient of the weight, our tiles": lambda g=g, x=x, sums=sums: (
                    products.weight_gradient_(g, x, sums, adds=False)
                ),
            }
        if by_fma:
            fma = products.product_by_fma
            kinds |= {
                "output, our multiply-adds": lambda x=x, w=w, fma=fma: fma(x, w.T),
                "gradient of the input, our multiply-adds": lambda g=g, w=w, fma=fma: fma(g, w),
                "gradient of the weight, our multiply-adds": lambda g=g, x=x, sums=sums, fma=fma: (
                    fma(g.T, x, sums=sums)
                ),
            }
        work = 2.0 * ROWS * outputs * inputs
        found[f"{ROWS} x {inputs} x {outputs}"] = {
            name: work / best_seconds(function, seconds) for name, function in kinds.items()
        }
    return found


def table(results: dict[str, Any]) -> str:
    """Format the rates in TFLOP/s as Markdown; matmuls with their share of the highest peak."""
    lines = ["| instructions | peak, TFLOP/s |", "|---|---|"]
    peaks = results["peaks"]
    lines += [f"| {name} | {value / 1e12:.3f} |" for name, value in peaks.items()]
    for dtype, found in results["products"].items():
        able = [value for name, value in peaks.items() if LOOPS[name].bf16 == (dtype == "bfloat16")]
        kinds = next(iter(found.values()))
        lines += ["", f"| {dtype} | {' | '.join(kinds)} |", "|---" * (len(kinds) + 1) + "|"]
        for shape, rates in found.items():
            cells = (f"{r / 1e12:.3f}, {r / max(able):.0%}" for r in rates.values())
            lines.append(f"| {shape} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
