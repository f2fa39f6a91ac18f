"""One rank of `ftcluster bench allreduce`: measures all-reduces by several backends.

    python -m ftcluster_train.health.bench_all_reduce RUN_DIR REQUEST

REQUEST is JSON, see `Request`. Rank 0 reports by events. gloo is the default group, which also
keeps the ranks together; the other backends and MPI itself are measured beside it, in the same
processes.
"""

import itertools
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from ftcluster_common.launch import BACKEND_VARIABLE, CCL, GLOO, IMPI, MPI
from ftcluster_train.comm import mpi_backend, oneccl
from ftcluster_train.comm.world import gather_over_ranks, host_led, join_world, leave_world
from ftcluster_train.errors import TrainError, error_line
from ftcluster_train.health.all_reduce_benchmark import Reduce, measure
from ftcluster_train.health.network_benchmark import measure_links
from ftcluster_train.io.events import EventWriter


@dataclass(frozen=True)
class Request:
    """What to measure.

    Attributes:
        sizes: in bytes.
        backends: of torch.distributed, or MPI for MPI_Allreduce itself.
        seconds: for all sizes.
    """

    sizes: list[int]
    backends: list[str]
    seconds: float


def run(run_dir: Path, request: Request) -> None:
    """Measure the network between the hosts, and all sizes; every rank calls it.

    Raises:
        TrainError: the ranks do not come together, a backend cannot be loaded, or a sum is wrong.
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
    """The measurements of this rank with the first ranks of other hosts, if it is one itself."""
    if rank not in leaders:
        return []
    return [asdict(link) for link in measure_links(leaders.index(rank), leaders)]


def reduction(backend: str) -> Reduce:
    """What sums a tensor over all ranks by a backend.

    Raises:
        TrainError: the backend cannot be loaded.
    """
    if backend == MPI:
        return mpi_all_reduce()
    if backend == CCL:
        oneccl.register()
    elif backend == IMPI:
        mpi_backend.register()
    group = None if backend == GLOO else dist.new_group(backend=backend)
    return lambda tensor: dist.all_reduce(tensor, group=group)


def mpi_all_reduce() -> Reduce:
    """MPI_Allreduce, called as a program of MPI would."""
    from ftcluster_train.comm import mpi_job  # loads MPI
    from ftcluster_train.comm.mpi_types import MPI as library
    from ftcluster_train.comm.mpi_types import as_elements

    mpi_job.progress()  # initializes MPI
    return lambda tensor: library.COMM_WORLD.Allreduce(library.IN_PLACE, as_elements(tensor))


def main() -> int:
    """Entry point; returns the exit code."""
    run_dir, request = sys.argv[1:]
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    try:
        run(Path(run_dir), Request(**json.loads(request)))
    except TrainError as error:
        print(error_line(error), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
