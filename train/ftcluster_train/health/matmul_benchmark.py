"""How fast this host multiplies matrices, and what may have slowed it down."""

import os
import time
from pathlib import Path
from typing import Any

from ftcluster_train.io.cpu import (
    CPU,
    counters,
    cpuinfo_field,
    megahertz,
    one_thread_per_core,
    read,
)

# BERT-base's feed-forward layer: 16 samples of 128 tokens, 768 features in, 3072 out
ROWS, INNER, COLUMNS = 2048, 768, 3072
# A CPU quota counts over 0.1 s: the rate over a window shows it, the fastest product would not. The
# best of several windows leaves out short disturbances.
WINDOW_SECONDS, ALL_SECONDS = 0.25, 0.7


def measure_speed(cores: int, bf16: bool) -> dict[str, Any]:
    """GFLOP/s of a matrix product with one thread per physical core, and what may explain it.

    Args:
        cores: number of threads, or 0 for one per physical core of this process.
    """
    import torch

    load = os.getloadavg()[0]
    one_per_core = one_thread_per_core(os.sched_getaffinity(0))
    threads = cores or len(one_per_core)
    if threads <= len(one_per_core):
        # as in training; torch's threads start below and inherit it
        os.sched_setaffinity(0, one_per_core)
    torch.set_num_threads(threads)
    before, cpu, began = counters(), time.process_time(), time.perf_counter()
    found = {
        "bf16_gflops": gflops(torch.bfloat16) if bf16 else None,
        "fp32_gflops": gflops(torch.float32),
    }
    seconds, used = time.perf_counter() - began, time.process_time() - cpu
    mhz, after = megahertz(one_per_core), counters()
    torch.set_num_threads(1)
    return {
        **found,
        "cpu": cpuinfo_field("model name"),
        "threads": threads,
        "load_average": round(load, 2),
        "cpu_share": round(min(1.0, used / (seconds * threads)), 3),
        "stolen_share": round(
            (after.stolen - before.stolen) / max(1, after.ticks - before.ticks), 3
        ),
        "throttled": after.throttled - before.throttled,
        "mhz": mhz,
        "governor": read(CPU / "cpu0/cpufreq/scaling_governor"),
        "numa_nodes": len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or 1,
    }


def gflops(dtype: Any) -> float:
    """The best rate of several windows, in 1e9 operations per second."""
    import torch

    one, other = torch.randn(ROWS, INNER).to(dtype), torch.randn(INNER, COLUMNS).to(dtype)
    result = torch.empty(ROWS, COLUMNS, dtype=dtype)
    torch.mm(one, other, out=result)  # generates the kernel
    best, end = 0.0, time.perf_counter() + ALL_SECONDS
    while time.perf_counter() < end:
        began, products, seconds = time.perf_counter(), 0, 0.0
        while seconds < WINDOW_SECONDS:
            torch.mm(one, other, out=result)
            products += 1
            seconds = time.perf_counter() - began
        best = max(best, products * 2e-9 * ROWS * INNER * COLUMNS / seconds)
    return round(best, 1)
