"""The MPI job that this process belongs to: start, communicators, groups, end."""

import atexit
import importlib.metadata
import json
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import record_function

from ftcluster_common.protocol.launch import IMPI, RUN_VARIABLE
from ftcluster_mpi.progress import Channel, Progress
from ftcluster_mpi.types import (
    CALLS,
    LEAVE,
    MPI,
    REFUSED,
    Tensors,
    check_bfloat16,
    describe,
    signature,
)
from ftcluster_mpi.work import MpiWork, Operation
from ftcluster_train.errors import TrainError, error_line

# of each rank: 8 ranks took 6 MB for all-reduces of 100 MB (Intel MPI 2021.18)
SHARED_BYTES = 2 << 20
# Intel MPI's own choice between hosts takes 1.4 times as long at 4 KiB and 1.25 times at 25 MiB.
# Small: recursive doubling; large: a ring, or beyond so many ranks what has fewer rounds (4 and 7)
ALGORITHMS, RING_RANKS = "1:0-16384;{}:1048576-2147483647", 16
# Bytes: larger all-reduces leave a host's caches (25 MiB: 7.6 ms by 8 MiB, 4.8 by 1 MiB); between
# hosts each part has the network's latency
SEGMENT, SEGMENT_BETWEEN_HOSTS = 1 << 20, 8 << 20
LOST = "ended without the other ranks, because a collective had failed and MPI cannot go on"
PRINT_SECONDS = 1.0  # for ranks that were told that this one has left

_progress: Progress | None = None
_lock = threading.Lock()
_open: dict[Channel, Callable[[], Operation]] = {}  # groups, and what leaves them
_left: list[Operation] = []

Copies = Sequence[tuple[torch.Tensor, torch.Tensor]]  # destination, source


@dataclass(frozen=True)
class Member:
    """A rank of a group.

    Attributes:
        number: in MPI's world.
        world: size of MPI's world.
        versions: of what has to be the same on all hosts.
    """

    number: int
    world: int
    host: str
    versions: dict[str, str]


def progress() -> Progress:
    """The thread that makes all calls of MPI, after MPI has been initialized."""
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
    """How many ranks of the job this host has, and how many there are."""
    return int(os.environ.get("MPI_LOCALNRANKS", "1")), int(os.environ.get("PMI_SIZE", "1"))


def check_shared_memory(ranks: int, folder: str = "/dev/shm") -> None:
    """Make sure that Intel MPI's ranks of this host have the shared memory that they need.

    Without it they would be killed by SIGBUS, some time later.

    Raises:
        DistBackendError: they have not.
    """
    free, needed = shutil.disk_usage(folder).free, ranks * SHARED_BYTES
    if ranks > 1 and free < needed:
        raise dist.DistBackendError(
            f"{socket.gethostname()} is out of shared memory: {folder} has {free / 1e6:.1f} MB "
            f"free, and MPI takes up to {needed / 1e6:.0f} MB for {ranks} ranks. Delete what "
            "nobody uses there, make it larger (docker run --shm-size), or use the backend gloo"
        )


def open_channel(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Channel:
    """A communicator for the ranks of a group; all of them call it.

    Raises:
        DistBackendError: a rank does not come in time, was not started by mpirun, or has other
            versions than the others.
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
    """All members of a group, by rank."""
    packages = ("torch", "mpi4py", "ftcluster-train")
    versions = {name: importlib.metadata.version(name) for name in packages}
    versions["MPI"] = MPI.Get_library_version().split("\n")[0].strip("\0 ")
    own = Member(MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, socket.gethostname(), versions)
    store.set(f"member/{rank}", json.dumps(asdict(own)))
    keys = [f"member/{other}" for other in range(size)]
    try:
        store.wait(keys, timeout)
    except RuntimeError as error:  # torch's DistStoreError is one
        absent = [str(other) for other in range(size) if not store.check([keys[other]])]
        raise dist.DistBackendError(
            f"ranks {', '.join(absent)} did not make the group within "
            f"{timeout.total_seconds():.0f} s"
        ) from error
    return [Member(**json.loads(store.get(key))) for key in keys]


def check(members: Sequence[Member]) -> None:
    """Make sure that MPI connects the members, and that they understand each other.

    Raises:
        DistBackendError: it does not, or they have other versions.
    """
    if len({member.number for member in members}) < len(members):
        raise dist.DistBackendError(
            "mpirun did not start these ranks, so MPI does not connect them: use ftcluster run, or "
            "mpirun instead of torchrun; or the backend gloo"
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
            f"{'; '.join(different)}. Set them up together: ftcluster setup"
        )


def leave(channel: Channel) -> None:
    """Leave a group; no effect where this rank has left it."""
    if channel in _open:
        _left[:] = [one for one in _left if one.error or not one.done.is_set()]
        _left.append(_open.pop(channel)())


def abandon() -> None:
    """End this process without waiting for the other ranks: mpirun ends them."""
    atexit.unregister(finalize)


def finalize() -> None:
    """Leave all groups and MPI, once all their ranks do so.

    A rank that fails does not: it would wait for others that wait for it. mpirun ends them when it
    is gone.
    """
    if hasattr(sys, "last_value"):  # an exception has ended the program
        return
    for channel in list(_open):
        leave(channel)
    for operation in _left:
        operation.done.wait()
    failed = next((operation.error for operation in _left if operation.error), None)
    if failed:
        error = TrainError(f"{LOST}: {failed}", "gloo's groups can be left after a time-out")
        told = error_line(error) if RUN_VARIABLE in os.environ else error.message
        print(told, file=sys.stderr, flush=True)
        time.sleep(PRINT_SECONDS)  # mpirun ends the others when this one ends
    else:
        progress().call(MPI.Finalize)


class JoinedGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A rank's part in a group: joins it, hands operations to MPI's thread, and leaves it.

    Args:
        timeout: of an operation, unless its call has another one.

    Attributes:
        segment: bytes of the parts that all-reduces are made in, one after the other.

    Raises:
        DistBackendError: see `open_channel`.
    """

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._own, self._ranks, self._timeout = rank, size, timeout
        self._channel = open_channel(store, rank, size, timeout)
        here, ranks = ranks_here()
        self.segment = SEGMENT if here == ranks else SEGMENT_BETWEEN_HOSTS
        self._name = self._description = ""
        self._together: list[MpiWork] | None = None  # called since `_start_coalescing`
        self._collectives = 0
        _open[self._channel] = self._leave

    def _get_backend(self, _: torch.device) -> "JoinedGroup":  # asked by torch from 2.14 on
        return self

    def getBackendName(self) -> str:
        return IMPI

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:
        return self._name

    def setGroupDesc(self, text: str) -> None:
        self._description = text

    def getGroupDesc(self) -> str:
        return self._description

    def shutdown(self) -> None:
        """Leave the group without waiting for the others; destroy_process_group calls it."""
        leave(self._channel)

    abort = shutdown

    def _leave(self) -> Operation:
        work = self._operation(LEAVE, lambda _: None, (), signature(LEAVE), then=self._channel.free)
        return work.operations[0]

    @property
    def _device_types(self) -> list[torch.device]:  # torch asks for it before dcp.async_save
        return [torch.device("cpu")]

    def _get_sequence_number_for_group(self) -> int:
        return self._collectives

    def _start_coalescing(self, _: torch.device) -> None:
        self._together = []

    def _end_coalescing(self, _: torch.device) -> MpiWork:
        works, self._together = self._together or [], None
        return MpiWork.joined(works)

    def _operation(
        self,
        name: str,
        start: Callable[[MPI.Intracomm], Iterator[MPI.Request] | MPI.Request | None],
        outputs: Tensors,
        values: tuple[int, ...] = (),
        copies: Copies = (),
        opts: Any = None,
        splits: tuple[int, ...] = (),
        divide: torch.Tensor | None = None,
        then: Callable[[], None] | None = None,
    ) -> MpiWork:
        """Hand an operation to the thread that makes all calls of MPI.

        Args:
            values: its signature.
            copies: to be made when it is complete; none where both are the same tensor.
            divide: by the number of ranks, when it is complete.
            then: called last.
        """

        def finish() -> None:
            if divide is not None:
                mode = None if divide.is_floating_point() or divide.is_complex() else "trunc"
                divide.div_(self._ranks, rounding_mode=mode)
            for target, data in copies:
                if target is not data:
                    target.copy_(data.view(target.shape))
            if then is not None:
                then()

        def begin() -> Iterator[MPI.Request]:
            requests = start(self._channel.comm)
            if isinstance(requests, Iterator):
                yield from requests
            elif requests:
                yield requests

        limit = getattr(opts, "timeout", None)
        seconds = (limit if limit and limit > timedelta(0) else self._timeout).total_seconds()
        one = Operation(
            describe(values) if values else name,
            begin,
            finish,
            values,
            splits,
            deadline=time.monotonic() + seconds,
        )
        self._collectives += bool(values)
        work = MpiWork([one], outputs)
        if torch.autograd._profiler_enabled():
            with record_function(
                f"{IMPI}:{CALLS[values[0]] if values else name.split()[0]}"
            ) as event:
                work.profile(event)  # before it starts: the event ends in another thread
        progress().submit(self._channel, one)
        if self._together is not None:
            self._together.append(work)
        return work


def told(method: Callable[..., MpiWork]) -> Callable[..., MpiWork]:
    """A collective whose wrong arguments on one rank are an error on all, and not a hang."""

    @wraps(method)
    def checked(self: JoinedGroup, *args: Any, **kwargs: Any) -> MpiWork:
        try:
            return method(self, *args, **kwargs)
        except ValueError as error:
            if not hasattr(error, "told"):  # one may call another
                error.told = True  # type: ignore[attr-defined]
                self._operation(REFUSED, lambda _: None, (), signature(REFUSED))
            raise

    return checked
