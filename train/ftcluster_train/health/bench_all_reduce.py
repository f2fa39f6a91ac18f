"""One rank of `ftcluster bench allreduce`, which measures all-reduces by several backends.

    python -m ftcluster_train.health.bench_all_reduce RUN_DIR REQUEST

REQUEST is an `AllReduceMeasurement` in JSON. Rank 0 reports the times as events. gloo is the
default process group, which also synchronizes the ranks. The other backends and MPI itself are
measured in the same processes.
"""

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
import torch.distributed as dist

from ftcluster_common.protocol.launch import BACKEND_VARIABLE, CCL, GLOO, IMPI, MPI
from ftcluster_train.comm import torch_backends
from ftcluster_train.comm.world import gather_over_ranks, host_led, join_world, leave_world
from ftcluster_train.errors import TrainError, error_line
from ftcluster_train.health.network_benchmark import measure_links
from ftcluster_train.io.events import EventWriter

TURNS = (5, 50)  # minimum and maximum number of turns for a size; in a turn each backend sums once
TYPES = ("fp32", "bf16")
PACE_BYTES = 1 << 20  # times of smaller sizes do not predict the times of larger sizes

Reduce = Callable[[Any], object]  # sums a tensor over all ranks in place


@dataclass(frozen=True)
class Times:
    """The times of all-reduces of one size, or the reason why the size was skipped.

    Attributes:
        type: dtype of the elements, one of TYPES.
        milliseconds: median over all turns of the slowest rank's time, for each backend.
        left_out: reason why the size was not measured; "" if it was.
        spread: interquartile range of the turns as a fraction of the median, for each backend.
        load: load average of the busiest host before the measurement, in processes per CPU over the
            last minute.
    """

    bytes: int
    type: str
    turns: int
    milliseconds: dict[str, float]
    left_out: str = ""
    spread: dict[str, float] = field(default_factory=dict)
    load: float = 0.0


def turns_of(turn_seconds: float, seconds: float) -> int:
    """Return how many turns to measure for a size.

    Args:
        turn_seconds: duration of one turn.
        seconds: time for all turns; the minimum number of turns may take longer.

    >>> turns_of(0.001, 5.0), turns_of(0.5, 5.0), turns_of(3.0, 5.0)
    (50, 10, 5)
    """
    return min(max(int(seconds / turn_seconds), TURNS[0]), TURNS[1])


def measure(backends: Mapping[str, Reduce], sizes: Sequence[int], limit: float) -> Iterator[Times]:
    """Measure all sizes, the smallest first, in fp32 and in bf16; every rank must call this.

    Each turn sums once with each backend, so that other load on the hosts affects all backends
    equally.

    Args:
        sizes: sizes in bytes.
        limit: seconds for all sizes; a size that would exceed the remaining time is skipped.

    Raises:
        TrainError: a sum is wrong; the message names the backend and the ranks.
    """
    import torch

    from ftcluster_train.comm.world import gather_over_ranks

    load = max(gather_over_ranks(os.getloadavg()[0] / (os.cpu_count() or 1)))
    began = time.perf_counter()
    pace: dict[str, float] = {}  # seconds of a turn per byte, by type
    rows = [(size, name) for size in sorted(sizes) for name in TYPES]
    for size, name in rows:
        expected = pace.get(name, 0.0) * size * (TURNS[0] + 1)
        remaining = limit - max(gather_over_ranks(time.perf_counter() - began))
        if expected > remaining:
            why = f"it would take {expected:.0f} s, but only {max(remaining, 0):.0f} s are left"
            yield Times(size, name, 0, {}, why, load=load)
            continue
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[name]
        tensor = torch.empty(size // dtype.itemsize, dtype=dtype)
        turn_began = time.perf_counter()
        one_turn(backends, tensor, check=name == "fp32")
        seconds = max(gather_over_ranks(time.perf_counter() - turn_began))
        turns = turns_of(seconds, limit / len(rows))
        of_ranks = gather_over_ranks([one_turn(backends, tensor) for _ in range(turns)])
        slowest = {
            backend: [max(rank[backend] for rank in turn) for turn in zip(*of_ranks, strict=True)]
            for backend in backends
        }
        milliseconds = {backend: 1000 * median(times) for backend, times in slowest.items()}
        if size >= PACE_BYTES:
            pace[name] = sum(milliseconds.values()) / 1000 / size
        spread = {backend: _spread(times) for backend, times in slowest.items()}
        yield Times(size, name, turns, milliseconds, spread=spread, load=load)


def _spread(seconds: Sequence[float]) -> float:
    first, middle, third = quantiles(seconds, n=4)
    return round((third - first) / middle, 3)


def one_turn(backends: Mapping[str, Reduce], tensor: Any, check: bool = False) -> dict[str, float]:
    """Sum a tensor of ones with each backend; return the seconds that each backend took.

    Args:
        check: True to compare the sums; use False for bf16, whose sums may be rounded.

    Raises:
        TrainError: a sum is wrong on a rank.
    """
    import torch.distributed as dist

    from ftcluster_train.comm.world import gather_over_ranks

    seconds = {}
    for backend, reduce in backends.items():
        tensor.fill_(1)
        dist.barrier()
        began = time.perf_counter()
        reduce(tensor)
        seconds[backend] = time.perf_counter() - began
        if check:
            right = bool(tensor.min() == tensor.max() == dist.get_world_size())
            wrong = [rank for rank, equal in enumerate(gather_over_ranks(right)) if not equal]
            if wrong:
                raise TrainError(f"the sum of {backend} is wrong on ranks {wrong}")
    return seconds


@dataclass(frozen=True)
class AllReduceMeasurement:
    """The all-reduces to measure.

    Attributes:
        sizes: sizes in bytes.
        backends: backends of torch.distributed, or MPI for MPI_Allreduce itself.
        seconds: time limit for all sizes together, in seconds.
    """

    sizes: list[int]
    backends: list[str]
    seconds: float


def run(run_dir: Path, request: AllReduceMeasurement) -> None:
    """Measure the hosts' network and all-reduces of all sizes; every rank must call this.

    Raises:
        TrainError: the ranks cannot connect, a backend cannot be loaded, or a sum is wrong.
    """
    os.environ[BACKEND_VARIABLE] = GLOO
    world = join_world()
    events = EventWriter(run_dir) if world.rank == 0 else None
    if events:
        events.write("phase", doing="measuring the network")
    leads = gather_over_ranks(host_led(world.rank) is not None)
    leaders = [rank for rank, is_first in enumerate(leads) if is_first]
    links = gather_over_ranks(own_links(world.rank, leaders))
    if events:
        for link in itertools.chain(*links):
            events.write("link", **link)
    backends = {name: reduction(name) for name in request.backends}
    if events:
        events.write("phase", doing="measuring all-reduces")
    for times in measure(backends, request.sizes, request.seconds):
        if events:
            events.write("all_reduce", **asdict(times))
    leave_world()


def own_links(rank: int, leaders: Sequence[int]) -> list[dict[str, object]]:
    """Measure the links to the first ranks of the other hosts.

    Returns:
        The links; none if this rank is not its host's first rank.
    """
    if rank not in leaders:
        return []
    return [asdict(link) for link in measure_links(leaders.index(rank), leaders)]


def reduction(backend: str) -> Reduce:
    """Return a function that sums a tensor over all ranks with a backend.

    Raises:
        TrainError: the backend cannot be loaded.
    """
    if backend == MPI:
        return mpi_all_reduce()
    if backend == CCL:
        torch_backends.import_ccl()
    elif backend == IMPI:
        torch_backends.register()
    group = None if backend == GLOO else dist.new_group(backend=backend)
    return lambda tensor: dist.all_reduce(tensor, group=group)


def mpi_all_reduce() -> Reduce:
    """Return a function that calls MPI_Allreduce as an MPI program would."""
    from ftcluster_mpi import job as mpi_job  # loads MPI
    from ftcluster_mpi.types import MPI as library
    from ftcluster_mpi.types import as_elements

    mpi_job.progress()  # initializes MPI
    return lambda tensor: library.COMM_WORLD.Allreduce(library.IN_PLACE, as_elements(tensor))


def main() -> int:
    """Run this rank; return the exit code."""
    run_dir, request = sys.argv[1:]
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    try:
        run(Path(run_dir), AllReduceMeasurement(**json.loads(request)))
    except TrainError as error:
        print(error_line(error), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
