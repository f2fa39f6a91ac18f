"""One rank of verify, which examines its host and its connections to the other hosts.

    mpirun ... python -m ftcluster_train.health.probe

Reads its request from the environment. Prints one JSON document in pieces and exits with 0, even
after an error: if a rank fails, mpirun ends the others before they have printed their documents.
"""

import contextlib
import gc
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import timedelta
from importlib.metadata import Distribution, distributions
from pathlib import Path
from statistics import median
from typing import Any

from ftcluster_common.protocol.launch import GLOO, IMPI, Host
from ftcluster_common.protocol.network import (
    PROVIDER_VARIABLE,
    HostNetwork,
    choose_provider,
    network_variables,
)
from ftcluster_kernels.cpu import cpuinfo_field
from ftcluster_train.comm.connectivity import (
    WAIT_SECONDS,
    check_connections,
    connected_ranks,
)
from ftcluster_train.errors import first_line
from ftcluster_train.health.consistency import KERNELS
from ftcluster_train.health.host_benchmark import kernel_used, measure_host
from ftcluster_train.health.open_ports import HostFirewall, accept_connections
from ftcluster_train.io.processes import run_of

REQUEST_VARIABLE = "FTCLUSTER_PROBE_REQUEST"
RUN_PREFIX = "verify-"  # start of the run id, which all processes have in their environment
LIMIT_SECONDS = 180  # the first import of torch may read from a cold disk
COLLECTIVE_SECONDS = 30
MARK = "FTCLUSTER-VERIFY"
PIECE = 3000  # characters per line: writes to a pipe are atomic up to 4096 bytes
TIMED_BYTES = 4 << 20
LARGE_BYTES = 25 << 20  # a whole bucket of gradients
# LARGE_BYTES are only measured if TIMED_BYTES take less than this. Otherwise LARGE_BYTES would take
# more than a second, and the time would depend on the network alone.
LARGE_MS = 100
TIMED_REPEATS = 5
PRINT_SECONDS = 1.0


@dataclass(frozen=True)
class ProbeRequest:
    """The request of the control node: hosts to check, and checks to make.

    Attributes:
        hosts: all hosts, the head first.
        cores: number of physical cores of each host, as far as known.
        mbits: known nominal speeds of network interfaces, by host and interface. If there are any,
            links are measured even without `measure`.
        networks: facts of each host that HostNetwork reads, as far as known.
        ports: ports of each host that the control node tries to reach meanwhile.
        firewall: True if it is a problem that the control node can reach ports of a host.
        firewalls: firewall program of each host, as far as known.
        folder: folder of the runs, whose disk is measured; "" to measure no disk.
        guarded: hosts on which setup has installed rules that close these ports, even if the rules
            are not loaded.
    """

    hosts: tuple[Host, ...]
    ssh_config: str
    interface: str
    measure: bool = False
    cores: dict[str, int] = field(default_factory=dict)
    mbits: dict[str, dict[str, int]] = field(default_factory=dict)
    networks: dict[str, dict[str, Any]] = field(default_factory=dict)
    ports: dict[str, list[int]] = field(default_factory=dict)
    firewall: bool = False
    firewalls: dict[str, HostFirewall] = field(default_factory=dict)
    folder: str = ""
    guarded: tuple[str, ...] = ()

    @classmethod
    def read(cls, text: str) -> "ProbeRequest":
        """Read a request from JSON; ignore fields of a later version of the control node."""
        names = {attribute.name for attribute in fields(cls)}
        data = {key: value for key, value in json.loads(text).items() if key in names}
        firewalls = {
            name: HostFirewall(firewall["program"], tuple(firewall["ports"]))
            for name, firewall in data.get("firewalls", {}).items()
        }
        hosts = tuple(Host(**host) for host in data["hosts"])
        guarded = tuple(data.get("guarded", ()))
        return cls(**{**data, "hosts": hosts, "firewalls": firewalls, "guarded": guarded})


def examine(request: ProbeRequest, rank: int, answer: dict[str, Any]) -> None:
    """Add results to `answer` step by step, so that an error does not lose earlier results."""
    addresses = [host.address for host in request.hosts]
    cores = request.cores.get(request.hosts[rank].name, 0)
    answer |= describe_host(addresses[rank])
    bf16 = not {"amx_bf16", "avx512_bf16"}.isdisjoint(answer["flags"])
    answer["kernel"] = kernel_used(bf16)

    import torch.distributed as dist

    from ftcluster_train.comm.world import open_store

    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    limit = timedelta(seconds=WAIT_SECONDS)
    store = open_store(address, port, rank, len(addresses), limit)
    answer["unreached"] = check_connections(store, rank, addresses)
    members = connected_ranks(answer["unreached"])
    if rank not in members:
        answer["speed"] = measure_host(request.folder, cores, bf16) if request.measure else None
        return
    answer |= join_group(
        dist.PrefixStore("members", store), address, members.index(rank), len(members)
    )
    answer["interface_mbits"] = request.mbits.get(request.hosts[rank].name, {}).get(
        answer["interface"]
    )
    if request.measure:
        dist.barrier()  # all hosts compute at the same time, as in training
        answer["speed"] = measure_host(request.folder, cores, bf16)
    if request.measure or any(request.mbits.values()):
        from ftcluster_train.health.network_benchmark import measure_links

        dist.barrier()
        answer["links"] = [
            {**asdict(link), "ranks": [members[end] for end in link.ranks]}
            for link in measure_links(members.index(rank), range(len(members)))
        ]
    if 1 < len(members) == len(addresses):  # MPI waits for every rank that mpirun has started
        os.environ.update(mpi_variables(request, rank, answer["interface"]))
        answer["backends"], answer["large"] = time_backends(answer)
    dist.barrier()  # until here the others need the store, which the head serves
    dist.destroy_process_group()


def networks_of(request: ProbeRequest, interface: str = "") -> list[HostNetwork]:
    """Return each host's network for MPI; a host without facts has only `interface`."""
    return [
        HostNetwork.from_dict(request.networks[host.name])
        if host.name in request.networks
        else HostNetwork(interface)
        for host in request.hosts
    ]


def mpi_variables(request: ProbeRequest, rank: int, interface: str) -> dict[str, str]:
    """Return variables that make MPI use the same network as in a run."""
    networks = networks_of(request, interface)
    provider = choose_provider(networks)
    return {PROVIDER_VARIABLE: provider, **network_variables(provider, networks[rank])}


def describe_host(address: str) -> dict[str, Any]:
    """Return the facts about this host that need no torch."""
    return {
        "hostname": socket.gethostname(),
        "has_address": has_address(address),
        "python": ".".join(map(str, sys.version_info[:3])),
        "packages": dict(map(name_and_version, distributions())),
        "flags": cpu_flags(),
        "busy": other_runs(),
    }


def name_and_version(package: Distribution) -> tuple[str, str]:
    """Return a package's name in lower case and its version.

    The function parses only the head of METADATA. importlib.metadata would parse the whole
    description of the package, once for each field.
    """
    head = (package.read_text("METADATA") or "").partition("\n\n")[0]
    fields = dict(line.partition(": ")[::2] for line in head.splitlines())
    return fields["Name"].lower(), fields["Version"]


def join_group(store: Any, head: str, rank: int, size: int) -> dict[str, Any]:
    """Create a process group as training does, and check a sum over it."""
    import torch.distributed as dist

    from ftcluster_train.comm.world import interface_towards, sum_over_ranks

    interface = interface_towards(head)
    # by default gloo uses the interface that the hostname resolves to, often the loopback
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    limit = timedelta(seconds=COLLECTIVE_SECONDS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)
    sums = sum_over_ranks([float(rank + 1), 0.5])
    return {
        "interface": interface,
        "sum_right": sums == [size * (size + 1) / 2, 0.5 * size],
        "all_reduce_ms": time_all_reduce(None, TIMED_BYTES) if size > 1 else None,
    }


def cpu_flags() -> list[str]:
    """Return the flags of KERNELS that this CPU has."""
    flags = cpuinfo_field("flags").split()
    return [flag for flag, _ in KERNELS if flag in flags]


def other_runs(processes: Path = Path("/proc")) -> list[str]:
    """Return the ids of other runs whose processes on this host this user may read."""
    runs = set()
    for folder in processes.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            runs.add(run_of(folder))
    return sorted(run for run in runs if run and not run.startswith(RUN_PREFIX))


def time_all_reduce(group: Any, size: int) -> float:
    """Return the median milliseconds of an all-reduce of `size` bytes in fp32.

    Args:
        group: process group; None means the default group.
    """
    import torch
    import torch.distributed as dist

    tensor = torch.zeros(size // 4)
    times = []
    for _ in range(TIMED_REPEATS):
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(tensor, group=group)
        times.append((time.perf_counter() - began) * 1000)
    return median(times)


def time_backends(answer: dict[str, Any]) -> tuple[dict[str, float], dict[str, float]]:
    """Return each backend's time for TIMED_BYTES and, on a fast network, for LARGE_BYTES.

    The result includes impi if all ranks can use impi; otherwise `answer` gets the reason.
    """
    import torch.distributed as dist

    from ftcluster_train.comm.torch_backends import register
    from ftcluster_train.comm.world import gather_over_ranks

    register()
    gloo, impi = [answer["all_reduce_ms"]], list[float]()
    sizes = [TIMED_BYTES]
    if all(gather_over_ranks(answer["all_reduce_ms"] < LARGE_MS)):
        sizes.append(LARGE_BYTES)
        gloo.append(time_all_reduce(None, LARGE_BYTES))
    try:
        group = dist.new_group(backend=IMPI, timeout=timedelta(seconds=COLLECTIVE_SECONDS))
        impi = [time_all_reduce(group, size) for size in sizes]
    except Exception as error:
        answer["impi_error"] = first_line(error)
    times = {GLOO: gloo} | ({IMPI: impi} if all(gather_over_ranks(bool(impi))) else {})
    return (
        {name: milliseconds[0] for name, milliseconds in times.items()},
        {name: milliseconds[1] for name, milliseconds in times.items() if len(sizes) > 1},
    )


def has_address(address: str) -> bool:
    """Return True if an interface of this host has the address, which may be a name."""
    try:
        address_info = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(*address_info[:3]) as probe:
            probe.bind(address_info[4])
    except OSError:
        return False
    return True


def pieces(rank: int, answer: dict[str, Any]) -> list[str]:
    """Return an answer as lines for `read_answers`."""
    text = json.dumps(answer)
    parts = [text[start : start + PIECE] for start in range(0, len(text), PIECE)]
    return [f"{MARK} {rank} {number} {len(parts)} {part}\n" for number, part in enumerate(parts)]


def read_answers(lines: Sequence[str]) -> list[dict[str, Any]]:
    """Return the complete answers in the output of mpirun, sorted by rank."""
    parts_by_rank: dict[int, dict[int, str]] = {}
    counts = {}
    for line in lines:
        _, mark, text = line.partition(f"{MARK} ")
        fields = text.rstrip("\n").split(" ", 3) if mark else []
        if len(fields) == 4 and all(word.isdecimal() for word in fields[:3]):
            rank, number, counts[rank] = int(fields[0]), int(fields[1]), int(fields[2])
            parts_by_rank.setdefault(rank, {})[number] = fields[3]
    answers = []
    for rank, parts in sorted(parts_by_rank.items()):
        if len(parts) == counts[rank]:
            with contextlib.suppress(ValueError, RecursionError):
                answers.append(json.loads("".join(parts[number] for number in sorted(parts))))
    return answers


def main() -> int:
    """Run this rank; return the exit code."""
    signal.alarm(LIMIT_SECONDS)  # this process ends even if other ranks never answer
    gc.disable()  # garbage collection takes 10 to 20 % of the import of torch
    rank = int(os.environ["PMI_RANK"])
    answer: dict[str, Any] = {"rank": rank, "error": ""}
    request = ProbeRequest.read(os.environ[REQUEST_VARIABLE])
    try:
        ports = request.ports.get(request.hosts[rank].name, [])
        with accept_connections(ports) as connections:
            examine(request, rank, answer)
    except Exception as error:
        answer["error"] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    answer["calls"] = asdict(connections)
    for line in pieces(rank, answer):
        sys.stdout.write(line)
        sys.stdout.flush()  # one write per line, so that the lines of several ranks do not mix
    # without MPI, mpirun ends all other ranks as soon as a rank ends
    if IMPI not in answer.get("backends", [IMPI]):
        time.sleep(PRINT_SECONDS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
