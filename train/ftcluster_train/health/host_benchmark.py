"""Measurements of this host's matrix multiplications, memory and disk, with reasons for low speed.

Also reads the name of oneDNN's matmul kernel. torch is imported only for the measurement.
"""

import contextlib
import math
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ftcluster_kernels.cpu import cpuinfo_field
from ftcluster_train.io.machine import (
    CPU,
    counters,
    free_memory,
    megahertz,
    one_thread_per_core,
    read,
)

# BERT-base's feed-forward layer: 16 samples of 128 tokens, 768 features in, 3072 out
ROWS, INNER, COLUMNS = 2048, 768, 3072
# The kernel enforces a CPU quota over 0.1 s. A window is longer, so its rate shows the quota; the
# time of the fastest matmul would not. The best of several windows excludes short disturbances.
WINDOW_SECONDS, ALL_SECONDS = 0.25, 0.7
PEAK_SECONDS = 0.1  # duration of each loop
# Two buffers of COPY_BYTES, memory permitting: they exceed the caches of two sockets (Xeon 6900:
# 504 MB of L3 each). Each takes at most 1 / SHARE_OF_FREE of the free memory.
COPY_BYTES, SHARE_OF_FREE = 512 << 20, 8
COPIES = 3
DISK_BYTES, PIECE_BYTES, WRITES = 32 << 20, 1 << 20, 2
LONGEST_SECONDS = 2.0  # a first write that takes longer is the only one
MATMUL_SIZE = 256  # rows and columns of the matmul whose kernel is examined
MOST_ROWS = 1024  # more rows hardly raise the rate of a matmul
SHAPE_SECONDS = 0.02  # duration per shape, after a first matmul that generates the kernel
MOST_SHAPES = 8  # the shapes with the most weights


def measure_host(folder: str, cores: int, bf16: bool) -> dict[str, Any]:
    """Return this host's rates of computing, copying and writing, and reasons for low rates."""
    return {
        **measure_speed(cores, bf16),
        "memory_gb_per_second": measure_memory(cores),
        "disk_mb_per_second": measure_disk(Path(folder)) if folder else None,
    }


def measure_speed(cores: int, bf16: bool) -> dict[str, Any]:
    """Return the GFLOP/s of a matmul on one thread per physical core, and reasons for a low rate.

    Args:
        cores: number of threads, or 0 for one per physical core of this process.
    """
    import torch

    load = os.getloadavg()[0]
    one_per_core = one_thread_per_core(os.sched_getaffinity(0))
    threads = cores or len(one_per_core)
    if threads <= len(one_per_core):
        # training uses the same cores; torch's threads start below and inherit them
        os.sched_setaffinity(0, one_per_core)
    torch.set_num_threads(threads)
    before, cpu, began = counters(), time.process_time(), time.perf_counter()
    rates = {
        "bf16_gflops": gflops(torch.bfloat16) if bf16 else None,
        "fp32_gflops": gflops(torch.float32),
    }
    shares = {
        f"{precision}_of_peak": share_of_peak(rates[f"{precision}_gflops"], precision, threads)
        for precision in ("bf16", "fp32")
    }
    seconds, used = time.perf_counter() - began, time.process_time() - cpu
    mhz, after = megahertz(one_per_core), counters()
    torch.set_num_threads(1)
    return {
        **rates,
        **shares,
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
    """Return the best rate of several windows, in 1e9 operations per second."""
    import torch

    inputs, weights = torch.randn(ROWS, INNER).to(dtype), torch.randn(INNER, COLUMNS).to(dtype)
    result = torch.empty(ROWS, COLUMNS, dtype=dtype)
    torch.mm(inputs, weights, out=result)  # generates the kernel
    best, end = 0.0, time.perf_counter() + ALL_SECONDS
    while time.perf_counter() < end:
        began, matmuls, seconds = time.perf_counter(), 0, 0.0
        while seconds < WINDOW_SECONDS:
            torch.mm(inputs, weights, out=result)
            matmuls += 1
            seconds = time.perf_counter() - began
        best = max(best, matmuls * 2e-9 * ROWS * INNER * COLUMNS / seconds)
    return round(best, 1)


def share_of_peak(gflops: float | None, precision: str, threads: int) -> float | None:
    """Return a matmul rate as a fraction of the CPU's register-bound peak FLOP rate.

    The result is None if the CPU has no peak loop for the precision. It is also None if the matmul
    was faster than the peak loops, because other work has then slowed the loops down.
    """
    from ftcluster_train.health.peak import LOOPS, instruction_sets, peak_rate

    peaks = [
        peak_rate(name, threads, PEAK_SECONDS)
        for name in instruction_sets()
        if LOOPS[name].bf16 == (precision == "bf16")
    ]
    share = gflops * 1e9 / max(peaks) if gflops and peaks else 0.0
    return round(share, 3) if 0 < share <= 1 else None


def measure_memory(threads: int) -> float:
    """Return the best rate of several copies in GB/s, counting the bytes read and written.

    Half of the bytes are read, half written. As in STREAM (McCalpin 1995), the read of a cache line
    before it is written is not counted.

    Args:
        threads: number of threads; 0 for one per hardware thread of this process.
    """
    import torch

    torch.set_num_threads(threads or len(os.sched_getaffinity(0)))
    size = min(COPY_BYTES, free_memory() // SHARE_OF_FREE)
    source = torch.empty(size, dtype=torch.uint8).fill_(1)  # each thread touches its part first
    target = torch.empty_like(source).fill_(0)
    best = 0.0
    for _ in range(COPIES):
        began = time.perf_counter()
        target.copy_(source)
        best = max(best, 2 * size / (time.perf_counter() - began))
    torch.set_num_threads(1)
    return round(best / 1e9, 1)


def measure_disk(folder: Path) -> float | None:
    """Return the MB/s (1e6 bytes) of writing a file with fsync, the best of two; None on an error.

    Checkpoints are written in the same way.
    """
    piece, best, began = os.urandom(PIECE_BYTES), 0.0, time.perf_counter()
    with contextlib.suppress(OSError):  # full, or not writable
        for _ in range(WRITES):
            with tempfile.TemporaryFile(dir=folder) as file:
                start = time.perf_counter()
                for _ in range(DISK_BYTES // PIECE_BYTES):
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
                best = max(best, DISK_BYTES / (time.perf_counter() - start))
            if time.perf_counter() - began > LONGEST_SECONDS:
                break
        return round(best / 1e6)
    return None


def kernel_used(bf16: bool) -> str:
    """Return the name of oneDNN's kernel for a matmul as in a training step, from oneDNN's log."""
    import torch

    matrix = torch.ones(MATMUL_SIZE, MATMUL_SIZE)
    verbose = torch.backends.mkldnn.verbose
    with captured_output() as log, verbose(torch.backends.mkldnn.VERBOSE_ON):
        if bf16:
            matrix = matrix.bfloat16()
            matrix @ matrix
        else:  # torch computes fp32 matmuls with MKL, and wide convolutions with oneDNN
            torch.nn.functional.conv1d(matrix[None], matrix[:, :, None].repeat(1, 1, 3))
    text = log.read_text(errors="replace")
    log.unlink()
    return kernel_of(text)


@contextlib.contextmanager
def captured_output() -> Iterator[Path]:
    """Redirect file descriptor 1 to a file: oneDNN prints its log from C."""
    descriptor, name = tempfile.mkstemp(prefix="ftcluster-onednn-")
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(descriptor, 1)
    try:
        yield Path(name)
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(descriptor)


def kernel_of(log: str) -> str:
    """Return the last kernel in oneDNN's log, apart from reorders; "" if there is none."""
    fields = [line.split(",") for line in log.splitlines() if ",primitive,exec,cpu," in line]
    names = [entry[6] for entry in fields if len(entry) > 6 and entry[5] != "reorder"]
    return names[-1] if names else ""


def matmul_shapes(model: Any) -> Counter[tuple[int, int]]:
    """Return the weight shapes of a model's matmuls, with the number of weights for each.

    Each element of a weight takes 6 operations per token, forward and backward.
    """
    import torch
    from transformers.pytorch_utils import Conv1D

    from ftcluster_kernels.nf4 import shape_of

    kinds = (torch.nn.Linear, Conv1D)
    shapes = (shape_of(module.weight) for module in model.modules() if isinstance(module, kinds))
    return Counter((int(rows), int(columns)) for rows, columns in shapes)


def weights_of(shapes: Mapping[tuple[int, int], int]) -> int:
    """Return the number of elements of all these weights."""
    return sum(rows * columns * count for (rows, columns), count in shapes.items())


def matmul_gflops(shapes: Mapping[tuple[int, int], int], tokens: int, dtype: Any) -> float:
    """Return the rate of these matmuls' forward pass, in 1e9 operations per second.

    The matmuls use all threads of this process. The best time of each shape counts, because other
    processes may disturb some runs.

    Args:
        tokens: number of tokens that a rank computes at once.
    """
    import torch

    rows = max(1, min(tokens, MOST_ROWS))
    largest = sorted(shapes, key=lambda shape: -shape[0] * shape[1] * shapes[shape])[:MOST_SHAPES]
    operations = seconds = 0.0
    with torch.inference_mode():
        for inner, columns in largest:
            inputs = torch.ones(rows, inner, dtype=dtype)
            weights = torch.ones(inner, columns, dtype=dtype)
            torch.mm(inputs, weights)
            best, end = math.inf, time.perf_counter() + SHAPE_SECONDS
            while (began := time.perf_counter()) < end:
                torch.mm(inputs, weights)
                best = min(best, time.perf_counter() - began)
            count = shapes[inner, columns]
            operations += count * 2e-9 * rows * inner * columns
            seconds += count * best
    return round(operations / seconds, 1) if seconds else 0.0
