"""One rank of bench.between_hosts: SECONDS NAMES SIZE ...

A time is the slowest rank's time. Collectives of small sizes follow each other.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from statistics import quantiles

import torch
import torch.distributed as dist

from ftcluster_train.comm import torch_backends
from ftcluster_train.health.bench_all_reduce import mpi_all_reduce

SMALL, CALLS = 64 << 10, 20


def measure(seconds: float, names: Sequence[str], sizes: Sequence[int]) -> None:
    """Measure all sizes; rank 0 prints a line of JSON for each."""
    torch.set_num_threads(1)
    torch_backends.register()
    own, size = int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])
    dist.init_process_group("gloo", rank=own, world_size=size)
    impi, mpi = dist.new_group(backend="impi"), mpi_all_reduce()
    from mpi4py import MPI  # as it was initialized

    for count in sizes:
        tensor = torch.ones(count // 4)
        calls: dict[str, Callable[[], object]] = {
            "gloo": lambda one=tensor: dist.all_reduce(one),
            "impi": lambda one=tensor: dist.all_reduce(one, group=impi),
            "mpi": lambda one=tensor: mpi(one),
        }
        if not count:
            calls = {
                "gloo": dist.barrier,
                "impi": lambda: dist.barrier(group=impi),
                "mpi": MPI.COMM_WORLD.Barrier,
            }
        for name in names if count else ():  # check the sums before the measurement
            data = torch.arange(count // 4, dtype=torch.float32) % 7
            tensor.copy_(data + own)
            calls[name]()
            assert torch.equal(tensor, data * size + size * (size - 1) / 2), name
        repeated = CALLS if count <= SMALL else 1
        times: dict[str, list[float]] = {name: [] for name in names}
        end, more = time.monotonic() + seconds / len(sizes), torch.ones(1)
        while more.item():
            for name in names:
                tensor.fill_(1)
                dist.barrier()
                began = time.perf_counter()
                for _ in range(repeated):
                    calls[name]()
                slowest = torch.tensor([(time.perf_counter() - began) / repeated])
                dist.all_reduce(slowest, dist.ReduceOp.MAX)
                times[name].append(1000 * slowest.item())
            more[0] = time.monotonic() < end or len(times[names[0]]) < 5
            dist.broadcast(more, 0)
        if own == 0:
            ms = {name: [round(q, 4) for q in quantiles(each[1:])] for name, each in times.items()}
            print(json.dumps({"bytes": count, "turns": len(times[names[0]]) - 1, "ms": ms}))
    dist.barrier()


if __name__ == "__main__":
    measure(float(sys.argv[1]), sys.argv[2].split(","), [int(size) for size in sys.argv[3:]])
