"""How fast this host's memory and its disk are."""

import contextlib
import os
import tempfile
import time
from pathlib import Path

from ftcluster_train.io.memory import free_memory

# together larger than the caches of two sockets (Xeon 6900: 504 MB of L3 each), if there is room
COPY_BYTES, SHARE_OF_FREE = 512 << 20, 8  # of each of two
COPIES = 3
DISK_BYTES, PIECE_BYTES, WRITES = 32 << 20, 1 << 20, 2
LONGEST_SECONDS = 2.0  # on a slow disk


def measure_memory(threads: int) -> float:
    """GB/s that so many threads read and write in a copy; the best of several.

    Half of the bytes are read, half written. That a processor may read a cache line before it
    writes it is not counted, as in STREAM (McCalpin 1995).

    Args:
        threads: 0 for one per hardware thread of this process.
    """
    import torch

    torch.set_num_threads(threads or len(os.sched_getaffinity(0)))
    size = min(COPY_BYTES, free_memory() // SHARE_OF_FREE)
    source = torch.empty(size, dtype=torch.uint8).fill_(1)  # each thread has its part near it
    target = torch.empty_like(source).fill_(0)
    best = 0.0
    for _ in range(COPIES):
        began = time.perf_counter()
        target.copy_(source)
        best = max(best, 2 * size / (time.perf_counter() - began))
    torch.set_num_threads(1)
    return round(best / 1e9, 1)


def measure_disk(folder: Path) -> float | None:
    """MB/s (1e6 bytes) at which a file is written to the disk, the best of two; None if it cannot.

    As a checkpoint: written, then fsync.
    """
    piece, best, began = os.urandom(PIECE_BYTES), 0.0, time.perf_counter()
    with contextlib.suppress(OSError):  # full, or not ours
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
