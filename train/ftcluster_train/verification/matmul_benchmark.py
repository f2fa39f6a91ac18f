"""How fast this host multiplies matrices, and what may have slowed it down."""

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
# A CPU quota counts over 0.1 s: the rate over a window shows it, the fastest product would not. The
# best of several windows leaves out short disturbances.
WINDOW_SECONDS, ALL_SECONDS = 0.25, 0.7
CPU = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Counters:
    """Counters of the kernel since it started.

    Attributes:
        stolen: ticks of all CPUs that the hypervisor gave to others.
        ticks: all ticks.
        throttled: how often a CPU was throttled because of heat.
    """

    stolen: int
    ticks: int
    throttled: int


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


def one_thread_per_core(allowed: Iterable[int]) -> set[int]:
    """The first allowed hardware thread of each physical core."""
    cores: dict[str, int] = {}
    for thread in sorted(allowed):
        siblings = read(CPU / f"cpu{thread}/topology/thread_siblings_list") or str(thread)
        cores.setdefault(siblings, thread)
    return set(cores.values())


def megahertz(threads: Iterable[int]) -> int | None:
    """The mean frequency now; None if the kernel does not report it."""
    found = []
    for block in read(Path("/proc/cpuinfo")).split("\n\n"):
        fields = dict(_field(line) for line in block.splitlines() if ":" in line)
        with contextlib.suppress(KeyError, ValueError):
            if int(fields["processor"]) in set(threads):
                found.append(float(fields["cpu MHz"]))
    return round(fmean(found)) if found else None


def counters() -> Counters:
    """The current values; see proc(5)."""
    line = read(Path("/proc/stat")).partition("\n")[0].split()[1:]
    ticks = [int(word) for word in line[:8]]  # guest time is in the first two as well
    counts = CPU.glob("cpu[0-9]*/thermal_throttle/core_throttle_count")
    return Counters(
        stolen=ticks[7] if len(ticks) > 7 else 0,
        ticks=sum(ticks),
        throttled=sum(int(read(path) or 0) for path in counts),
    )


def cpuinfo_field(name: str) -> str:
    """A field of /proc/cpuinfo, of the first CPU."""
    lines = read(Path("/proc/cpuinfo")).partition("\n\n")[0].splitlines()
    return dict(_field(line) for line in lines if ":" in line).get(name, "")


def read(path: Path) -> str:
    """A file's text, stripped; "" if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _field(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip(), value.strip()
