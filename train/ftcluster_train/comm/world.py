"""The process group of a run, the workers of local training, and collectives on plain data."""

import contextlib
import fcntl
import json
import os
import socket
import statistics
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ftcluster_common.protocol.launch import BACKEND_VARIABLE, CCL, IMPI, own_rank, own_size
from ftcluster_common.protocol.timeouts import timeouts_of
from ftcluster_train.comm import torch_backends
from ftcluster_train.comm.connectivity import listen
from ftcluster_train.errors import TrainError

DEFAULT_PORT = 29500  # torch's default, for a launch without the supervisor
LOOPBACK = "lo"
SIOCGIFADDR = 0x8915  # ioctl that returns the address of an interface, netdevice(7)


@dataclass(frozen=True)
class World:
    """The place of this process among all processes of the run.

    Attributes:
        rank: rank of this process; rank 0 is on the head.
    """

    rank: int
    size: int
    backend: str


def join_world() -> World:
    """Create the process group; `bind` sets rank and size, or Hydra if `bind` is not used.

    Raises:
        TrainError: neither mpirun nor torchrun has started this process, the backend cannot be
            loaded, or rank 0 has a loopback address although there are other hosts.
    """
    try:
        rank, size = own_rank(os.environ), own_size(os.environ)
    except KeyError:
        raise TrainError("PMI_RANK is not set", "start the ranks with mpirun") from None
    backend = os.environ.get(BACKEND_VARIABLE, "gloo")
    if backend == CCL:
        torch_backends.import_ccl()
    elif backend == IMPI:
        torch_backends.register()
    host = os.environ.get("MASTER_ADDR", "127.0.0.1")
    port = int(os.environ.get("MASTER_PORT", DEFAULT_PORT))
    # by default, gloo uses the interface of the address of the hostname, often the loopback
    interface = interface_towards(host)
    here = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    if interface == LOOPBACK and here < size:
        raise TrainError(
            f"{host} belongs to the loopback interface on {socket.gethostname()}, so ranks on "
            "other hosts cannot reach it",
            f"in /etc/hosts of {socket.gethostname()}, map {host} to the address at which other "
            "hosts reach it (Debian maps a host's own name to 127.0.1.1)",
        )
    if interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    timeouts = timeouts_of(os.environ)
    dist.init_process_group(
        backend,
        store=_store(host, port, rank, size, timedelta(seconds=timeouts.join)),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeouts.collective),
    )
    return World(rank=rank, size=size, backend=backend)


def _store(host: str, port: int, rank: int, size: int, limit: timedelta) -> dist.Store:
    """Return the store that all ranks share: torchrun's store if there is one, else rank 0's."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return open_store(host, port, rank, size, limit)
    store = dist.TCPStore(host, port, size, is_master=False, timeout=limit, wait_for_workers=False)
    # the store outlives the ranks, so restarted ranks use a different prefix
    return dist.PrefixStore(f"ftcluster/{os.environ['TORCHELASTIC_RESTART_COUNT']}", store)


def open_store(host: str, port: int, rank: int, size: int, limit: timedelta) -> dist.TCPStore:
    """Return the store that all ranks share; rank 0 listens only at the address `host`.

    By default, torch would listen at all addresses, although the store has no authentication.

    Args:
        host: rank 0's address.
        limit: maximum time that a rank waits for a key.

    Raises:
        TrainError: another program uses the port.
    """
    try:
        descriptor = listen(host, port, size).detach() if rank == 0 else None
    except OSError as error:
        raise TrainError(
            f"torch's rendezvous cannot listen at {host}, port {port}: {error.strerror}",
            f"find the program that uses the port: ss -ltnp 'sport = :{port}'; or start the run "
            "again, which uses another port",
            restartable=True,
        ) from None
    return dist.TCPStore(
        host, port, size, is_master=rank == 0, timeout=limit, wait_for_workers=False,
        master_listen_fd=descriptor,
    )  # fmt: skip


def interface_towards(host: str) -> str:
    """Return the network interface of the route to `host`; "" if it is unknown.

    Connecting a UDP socket sends nothing, but makes the kernel choose a source address.
    """
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, DEFAULT_PORT))
        source = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without an IPv4 address
                request = struct.pack("256s", name.encode()[:15])
                answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
                if socket.inet_ntoa(answer[20:24]) == source:
                    return name
    return ""


def host_led(rank: int) -> int | None:
    """Return the number of this rank's host if the rank is the first on that host, else None."""
    if "LOCAL_RANK" not in os.environ:  # without `bind`, all ranks are on one host
        return 0 if rank == 0 else None
    return int(os.environ["GROUP_RANK"]) if os.environ["LOCAL_RANK"] == "0" else None


def folder_led(rank: int, shared: bool) -> int | None:
    """Return the number of the run's folder that this rank writes to, or None if it writes none.

    Args:
        shared: True if all hosts share one folder; False if each host has its own.
    """
    if shared:
        return 0 if rank == 0 else None
    return host_led(rank)


def leave_world() -> None:
    """Destroy the process group."""
    dist.destroy_process_group()


def abandon_world() -> None:
    """Let this process end without waiting for the other ranks, which may wait for this rank."""
    if dist.is_initialized() and dist.get_backend() == IMPI:
        from ftcluster_mpi.job import abandon  # loads MPI

        abandon()


def least_over_ranks(values: list[float]) -> list[float]:
    """Return the element-wise minimum over all ranks, the same on every rank."""
    tensor = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(tensor, dist.ReduceOp.MIN)
    result: list[float] = tensor.tolist()
    return result


def sum_over_ranks(values: list[float]) -> list[float]:
    """Return the element-wise sum over all ranks, the same on every rank."""
    tensor = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(tensor)
    result: list[float] = tensor.tolist()
    return result


def latency_of_collectives() -> float:
    """Return the median time of an all-reduce of one value in seconds, averaged over the ranks."""
    times = []
    for _ in range(6):
        began = time.perf_counter()
        sum_over_ranks([0.0])
        times.append(time.perf_counter() - began)
    seconds = statistics.median(times[1:])  # the first one includes waits for other ranks
    return sum_over_ranks([seconds])[0] / float(dist.get_world_size())


def gather_over_ranks(value: Any) -> list[Any]:
    """Return the values of all ranks, ordered by rank; the result is the same on every rank.

    Values are sent as JSON, because all_gather_object unpickles data from the network, which may
    execute code.

    Args:
        value: plain data; tuples become lists.
    """
    encoded = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(encoded)], dtype=torch.int64))
    longest = max(map(int, sizes))
    padded = torch.nn.functional.pad(encoded, (0, longest - len(encoded)))
    texts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(texts, padded)
    pairs = zip(texts, sizes, strict=True)
    return [json.loads(text[: int(size)].numpy().tobytes()) for text, size in pairs]


def differing_ranks(values: Sequence[str]) -> tuple[list[int], list[int]]:
    """Return the ranks whose value is not the most frequent value, and the other ranks.

    If several values are equally frequent, the first of them counts as the most frequent.

    >>> differing_ranks(["a", "b", "b"])
    ([0], [1, 2])
    """
    usual = max(values, key=values.count)
    ranks = range(len(values))
    return [r for r in ranks if values[r] != usual], [r for r in ranks if values[r] == usual]


def check_equal_on_ranks(digest: str, step: int, what: str = "parameters") -> None:
    """Compare a hash of each rank's parameters or gradients after `step`.

    Raises:
        TrainError: the ranks have diverged.
    """
    different, others = differing_ranks(gather_over_ranks(digest))
    if different:
        raise TrainError(
            f"after step {step}, the {what} on ranks {different} differ from the {what} on ranks "
            f"{others}",
            "the all-reduce of gradients gave different results; nothing was saved",
        )


def check_equal_samples(digest: str) -> None:
    """Compare a hash of each rank's samples, because each host tokenizes the data itself.

    Raises:
        TrainError: the samples differ.
    """
    different, others = differing_ranks(gather_over_ranks(digest))
    if different:
        raise TrainError(
            f"ranks {different} have different samples than ranks {others}: their hosts have "
            "different data, or a different tokenizer, under the same name",
            "pass local folders, which are copied to all hosts: --data DIR --model DIR",
        )


@dataclass(frozen=True)
class Worker:
    """A worker of local training: the ranks of a host. On a single host, each rank is a worker.

    Attributes:
        ranks: ranks of this worker.
        world_size: total number of ranks, over all workers.
        steps: the worker's process group for gradients; None for a single rank.
        exchange: second group of the same ranks, for another thread; None for a single rank.
        leaders: group of the first ranks of all workers; None on other ranks.
    """

    ranks: tuple[int, ...]
    world_size: int
    steps: dist.ProcessGroup | None
    exchange: dist.ProcessGroup | None
    leaders: dist.ProcessGroup | None

    @property
    def share(self) -> float:
        """The worker's fraction of all ranks, which is also its fraction of each batch."""
        return len(self.ranks) / self.world_size


def make_worker() -> Worker:
    """Return this rank's worker; every rank must call this."""
    hosts = gather_over_ranks(os.environ.get("GROUP_RANK", "0"))  # set by `bind`
    if len(set(hosts)) == 1:
        hosts = [str(rank) for rank in range(len(hosts))]
    here = hosts[dist.get_rank()]
    members = {
        host: tuple(rank for rank, of_rank in enumerate(hosts) if of_rank == host)
        for host in dict.fromkeys(hosts)
    }
    groups: dict[str, list[dist.ProcessGroup | None]] = {
        host: [dist.new_group(ranks) if len(ranks) > 1 else None for _ in range(2)]
        for host, ranks in members.items()
    }
    first = [ranks[0] for ranks in members.values()]
    leaders = dist.new_group(first)
    steps, exchange = groups[here]
    leads = dist.get_rank() in first
    return Worker(members[here], len(hosts), steps, exchange, leaders if leads else None)
