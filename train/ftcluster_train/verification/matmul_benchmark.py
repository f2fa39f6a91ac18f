"""How fast this host multiplies matrices, and what could slow it down meanwhile."""

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

# BERT-base's feed-forward layer: 16 samples of 128 tokens, 768 features in, 3072 out
ROWS, INNER, COLUMNS = 2048, 768, 3072
# A quota counts over 0.1 s: the rate of a window shows it, the best product of all would not. The
# best of some windows leaves out what disturbs for a moment.
WINDOW_SECONDS, ALL_SECONDS = 0.25, 0.7
CPU = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Counters:
    """What the kernel counts from its start on.

    Attributes:
        stolen: time that the hypervisor gave to others, in ticks of all CPUs.
        ticks: all time, in the same.
        throttled: how often a CPU has slowed itself down for its heat.
    """

    stolen: int
    ticks: int
    throttled: int


def measure_speed(cores: int, bf16: bool) -> dict[str, Any]:
    """GFLOP/s of a matrix product with a thread a physical core, and the circumstances.

    Args:
        cores: how many threads, or 0 for a thread a physical core of this process.
        bf16: whether the CPU has instructions for bf16.
    """
    import torch

    load = os.getloadavg()[0]
    one_a_core = first_threads(os.sched_getaffinity(0))
    threads = cores or len(one_a_core)
    if threads <= len(one_a_core):
        # as training is bound; the pool of threads is made below and inherits it
        os.sched_setaffinity(0, one_a_core)
    torch.set_num_threads(threads)
    before, cpu, began = counters(), time.process_time(), time.perf_counter()
    found = {
        "bf16_gflops": gflops(torch.bfloat16) if bf16 else None,
        "fp32_gflops": gflops(torch.float32),
    }
    seconds, used = time.perf_counter() - began, time.process_time() - cpu
    mhz, after = megahertz(one_a_core), counters()
    torch.set_num_threads(1)
    return {
        **found,
        "cpu": field_of_cpuinfo("model name"),
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
    """The best rate of some windows of products, 1e9 operations a second."""
    import torch

    one, other = torch.randn(ROWS, INNER).to(dtype), torch.randn(INNER, COLUMNS).to(dtype)
    result = torch.empty(ROWS, COLUMNS, dtype=dtype)
    torch.mm(one, other, out=result)  # makes the kernel
    best, end = 0.0, time.perf_counter() + ALL_SECONDS
    while time.perf_counter() < end:
        began, products, seconds = time.perf_counter(), 0, 0.0
        while seconds < WINDOW_SECONDS:
            torch.mm(one, other, out=result)
            products += 1
            seconds = time.perf_counter() - began
        best = max(best, products * 2e-9 * ROWS * INNER * COLUMNS / seconds)
    return round(best, 1)


def first_threads(allowed: Iterable[int]) -> set[int]:
    """One hardware thread of each physical core among those that are allowed."""
    cores: dict[str, int] = {}
    for thread in sorted(allowed):
        siblings = read(CPU / f"cpu{thread}/topology/thread_siblings_list") or str(thread)
        cores.setdefault(siblings, thread)
    return set(cores.values())


def megahertz(threads: Iterable[int]) -> int | None:
    """The mean frequency that the kernel tells now, None where it tells none."""
    found = []
    for block in read(Path("/proc/cpuinfo")).split("\n\n"):
        fields = dict(_field(line) for line in block.splitlines() if ":" in line)
        with contextlib.suppress(KeyError, ValueError):
            if int(fields["processor"]) in set(threads):
                found.append(float(fields["cpu MHz"]))
    return round(fmean(found)) if found else None


def counters() -> Counters:
    """What the kernel has counted until now; proc(5)."""
    line = read(Path("/proc/stat")).partition("\n")[0].split()[1:]
    ticks = [int(word) for word in line[:8]]  # those after it are counted in the first two as well
    counts = CPU.glob("cpu[0-9]*/thermal_throttle/core_throttle_count")
    return Counters(
        stolen=ticks[7] if len(ticks) > 7 else 0,
        ticks=sum(ticks),
        throttled=sum(int(read(path) or 0) for path in counts),
    )


def field_of_cpuinfo(name: str) -> str:
    """A field of the first CPU."""
    lines = read(Path("/proc/cpuinfo")).partition("\n\n")[0].splitlines()
    return dict(_field(line) for line in lines if ":" in line).get(name, "")


def read(path: Path) -> str:
    """The text of a file without the space around it, or "" where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _field(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip(), value.strip()
