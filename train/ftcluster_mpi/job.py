"""The MPI job that this process belongs to: start, communicators, groups, end."""

import atexit
import hashlib
import importlib.metadata
import json
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path

import torch.distributed as dist

from ftcluster_mpi import registration
from ftcluster_mpi.progress import Channel, Progress
from ftcluster_mpi.types import MPI, check_bfloat16
from ftcluster_mpi.work import Operation

# shared memory per rank, in bytes: 8 ranks used 6 MB for messages of 100 MB (Intel MPI 2021.18)
SHARED_BYTES = 2 << 20
# All-reduce algorithms between hosts, by message size. Intel MPI's default choice takes 1.4 times
# as long at 4 KiB and 1.25 times as long at 25 MiB. Small messages use recursive doubling (1).
# Large messages use a ring (4), or for more than RING_RANKS ranks an algorithm with fewer rounds
# (7).
ALGORITHMS, RING_RANKS = "1:0-16384;{}:1048576-2147483647", 16
# Sizes in bytes of the segments of an all-reduce on one host, and between hosts. Larger segments
# exceed a host's caches: 25 MiB take 7.6 ms in segments of 8 MiB, and 4.8 ms in segments of 1 MiB.
# Between hosts, each segment adds the network's latency.
SEGMENT, SEGMENT_BETWEEN_HOSTS = 1 << 20, 8 << 20
LOST = "ended without the other ranks, because MPI cannot continue after a failed collective"
PRINT_SECONDS = 1.0  # time for other ranks to print their errors after this rank has left

_progress: Progress | None = None
_lock = threading.Lock()
_open: dict[Channel, Callable[[], Operation]] = {}  # for each group, the call that leaves it
_leaving: list[Operation] = []


@dataclass(frozen=True)
class Member:
    """A rank of a group.

    Attributes:
        number: rank in MPI's world.
        world: size of MPI's world.
        versions: versions of packages and MPI by name, which must be the same on all hosts.
    """

    number: int
    world: int
    host: str
    versions: dict[str, str]


def progress() -> Progress:
    """Initialize MPI if necessary, and return the thread that makes all MPI calls."""
    global _progress
    with _lock:
        if not _progress:
            if not MPI.Is_initialized():
                here, ranks = ranks_here()
                check_shared_memory(here)
                if here < ranks:
                    chosen = ALGORITHMS.format(4 if ranks <= RING_RANKS else 7)
                    os.environ.setdefault("I_MPI_ADJUST_IALLREDUCE", chosen)
                MPI.Init_thread(MPI.THREAD_MULTIPLE)
                atexit.register(finalize)
                check_bfloat16()
            _progress = Progress()
        return _progress


def ranks_here() -> tuple[int, int]:
    """Return the number of the job's ranks on this host, and the total number of its ranks."""
    return int(os.environ.get("MPI_LOCALNRANKS", "1")), int(os.environ.get("PMI_SIZE", "1"))


def check_shared_memory(ranks: int, folder: str = "/dev/shm") -> None:
    """Check that this host has enough free shared memory for Intel MPI's ranks.

    If there is too little shared memory, SIGBUS kills the ranks some time later.

    Raises:
        DistBackendError: the host has too little free shared memory.
    """
    free, needed = shutil.disk_usage(folder).free, ranks * SHARED_BYTES
    if ranks > 1 and free < needed:
        raise dist.DistBackendError(
            f"{socket.gethostname()} has too little free shared memory: {folder} has "
            f"{free / 1e6:.1f} MB free, but MPI needs up to {needed / 1e6:.0f} MB for {ranks} "
            f"ranks. Delete unused files in {folder}, make {folder} larger (docker run "
            "--shm-size), or use the backend gloo"
        )


def open_channel(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Channel:
    """Create a communicator for the ranks of a group; all ranks of the group must call this.

    Raises:
        DistBackendError: a rank does not call this in time, was not started by mpirun, or has
            different versions of the packages.
    """
    thread = progress()
    members = meet(store, rank, size, timeout)
    check(members)

    def make() -> Channel:
        group = MPI.COMM_WORLD.Get_group().Incl([member.number for member in members])
        comm = MPI.COMM_WORLD.Create_group(group)
        return Channel(comm, [member.host for member in members], store)

    return thread.call(make)


def meet(store: dist.Store, rank: int, size: int, timeout: timedelta) -> list[Member]:
    """Return all members of a group, ordered by rank."""
    versions = {name: importlib.metadata.version(name) for name in ("torch", "mpi4py")}
    versions["ftcluster_mpi"] = _own_version()
    versions["MPI"] = MPI.Get_library_version().split("\n")[0].strip("\0 ")
    member = Member(MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, socket.gethostname(), versions)
    store.set(f"member/{rank}", json.dumps(asdict(member)))
    keys = [f"member/{other}" for other in range(size)]
    try:
        store.wait(keys, timeout)
    except RuntimeError as error:  # the base class of torch's DistStoreError
        absent = [str(other) for other in range(size) if not store.check([keys[other]])]
        raise dist.DistBackendError(
            f"ranks {', '.join(absent)} did not join the group within "
            f"{timeout.total_seconds():.0f} s"
        ) from error
    return [Member(**json.loads(store.get(key))) for key in keys]


@cache
def _own_version() -> str:
    """Return a digest of this package's source, which all ranks must share."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def check(members: Sequence[Member]) -> None:
    """Check that MPI connects the members, and that their versions are the same.

    Raises:
        DistBackendError: MPI does not connect them, or their versions differ.
    """
    if len({member.number for member in members}) < len(members):
        raise dist.DistBackendError(
            "mpirun did not start these ranks, so MPI does not connect them: start them with "
            "mpirun instead of torchrun, or use the backend gloo"
        )
    first = members[0]
    different = [
        f"rank {rank} ({member.host}) has {name} {member.versions[name]}"
        for rank, member in enumerate(members)
        for name in first.versions
        if member.versions[name] != first.versions[name]
    ]
    if different:
        have = ", ".join(f"{name} {version}" for name, version in first.versions.items())
        raise dist.DistBackendError(
            f"the hosts have different stacks: rank 0 ({first.host}) has {have}; "
            f"{'; '.join(different)}. Install the same versions on every host"
        )


def track(channel: Channel, leaving: Callable[[], Operation]) -> None:
    """Call `leaving` at the end of the process, unless `leave` is called for the group before."""
    _open[channel] = leaving


def leave(channel: Channel) -> None:
    """Leave a group; do nothing if this rank has already left it."""
    if channel in _open:
        _leaving[:] = [
            leaving for leaving in _leaving if leaving.error or not leaving.done.is_set()
        ]
        _leaving.append(_open.pop(channel)())


def abandon() -> None:
    """Let this process end without waiting for the other ranks; mpirun then ends those ranks."""
    atexit.unregister(finalize)


def finalize() -> None:
    """Leave all groups and MPI; wait until the other ranks have left too.

    A failed rank does not call MPI_Finalize, because the call would wait for ranks that wait for
    this rank. mpirun ends the other ranks after this rank has ended.
    """
    if hasattr(sys, "last_value"):  # an exception has ended the program
        return
    for channel in list(_open):
        leave(channel)
    for operation in _leaving:
        operation.done.wait()
    failed = next((operation.error for operation in _leaving if operation.error), None)
    if failed:
        registration.report_lost(
            f"{LOST}: {failed}", "to leave a group after a timeout, use the backend gloo"
        )
        time.sleep(PRINT_SECONDS)  # mpirun ends the other ranks when this one ends
    else:
        progress().call(MPI.Finalize)
