"""The facts of each host, which preflight gathers and plan() uses. Plain data."""

import math
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ansible_collections.ftcluster.cluster.plugins.plugin_utils.host_answer import known_facts

from ftcluster_common.protocol.network import AUTO, HostNetwork, RdmaDevice

MOST_SAID = 3  # maximum number of problems to show of a host
SETUP, BENCH = "setup", "bench"  # the commands that measure an all-reduce


@dataclass(frozen=True)
class NumaNode:
    """A NUMA node that ranks may use.

    Attributes:
        cores: number of physical cores within the host's CPU set; 0 for a node with only memory.
        cpus: CPU numbers of the cores' first usable hardware threads, such as "0-15,32".
        near: nearest node with cores, if this node has none; nearest node with memory, if this node
            has none.
        socket_cpus: all usable hardware threads by socket; empty in facts of older setups.
        distances: distance to each node of the host; empty if not known.
    """

    node: int
    cores: int
    memory_bytes: int
    cpus: str
    near: int | None = None
    hbm: bool = False
    socket_cpus: dict[str, str] = field(default_factory=dict)
    distances: tuple[int, ...] = ()

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "NumaNode":
        """Read a node from the module's result; unknown keys are ignored."""
        values = {key.name: data[key.name] for key in fields(cls) if key.name in data}
        return cls(**{**values, "distances": tuple(values.get("distances", ()))})


@dataclass(frozen=True)
class HostFacts:
    """The facts of a host: those of the module `ftcluster.cluster.host_facts`, and the following.

    Attributes:
        name: name of the host in the inventory.
        connection: Ansible's connection plugin (local, ssh, ...).
        can_become_root: True if `become` works on the host.
        rank_user: the account that ranks run as, or "" for the login user.
        stack: name of the host's active stack.
        network_provider: libfabric's provider that the inventory sets, or "auto".
        price_per_hour: price in the inventory's form, such as "4.08 USD"; "" if there is none.
    """

    name: str
    connection: str
    cpu_model: str
    cpu_flags: tuple[str, ...]
    cores: int
    threads: int
    numa_nodes: int
    memory_bytes: int
    free_bytes: int
    prefix: str
    python: str
    can_become_root: bool
    tcmalloc: str
    network_address: str
    network_interface: str
    rank_user: str
    hostname: str
    os: str
    kernel: str
    cpu_generation: str
    amx: str
    sockets: int
    numa: tuple[NumaNode, ...]
    nics: tuple[dict[str, Any], ...]
    clock_offset_seconds: float | None
    stack: str = "native"
    cpu_quota: float | None = None
    openmp: str = ""
    rdma: tuple[RdmaDevice, ...] = ()
    rdma_libraries: tuple[str, ...] = ()
    locks_memory: bool = False
    network_provider: str = AUTO
    price_per_hour: str = ""

    @property
    def network(self) -> HostNetwork:
        """The interfaces and devices that MPI can use on the host."""
        return HostNetwork.from_dict(asdict(self))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "HostFacts":
        """Read facts from the module's result; unknown keys are ignored.

        Raises:
            KeyError, TypeError, ValueError: the facts are not valid.
        """
        said = known_facts(data, cls)[1]
        if wrong := [one for one in said if not one.endswith(" is missing")]:
            raise ValueError("; ".join(wrong[:MOST_SAID]))
        values = {key.name: data[key.name] for key in fields(cls) if key.name in data}
        lists = {
            name: tuple(values.get(name, ())) for name in ("cpu_flags", "nics", "rdma_libraries")
        }
        lists["numa"] = tuple(NumaNode.from_dict(node) for node in values["numa"])
        lists["rdma"] = tuple(RdmaDevice.from_dict(device) for device in values.get("rdma", ()))
        return cls(**{**values, **lists})


def stack_name(folder: str) -> str:
    """Return the stack of a folder such as /opt/ftcluster/stacks/native-1b2c3d4e5f60.

    >>> stack_name("/opt/ftcluster/stacks/intel-2.8-1b2c3d4e5f60")
    'intel-2.8'
    """
    return Path(folder).name.rpartition("-")[0]


@dataclass(frozen=True)
class AllReduce:
    """The measured time of an all-reduce in fp32 over the hosts of a cluster.

    Attributes:
        ms: milliseconds by backend of torch.distributed.
        hosts: number of hosts that took part.
        by: the command that has measured it, SETUP or BENCH.
        sizes: milliseconds by backend for other sizes, which are bytes as text.
    """

    ms: dict[str, float]
    bytes: int
    hosts: int
    by: str
    sizes: dict[str, dict[str, float]] = field(default_factory=dict)

    def nearest(self, size: int) -> "AllReduce":
        """Return the measurement of the size whose ratio to `size` bytes is nearest to 1."""
        rows = {self.bytes: self.ms} | {int(text): ms for text, ms in self.sizes.items()}
        best = min(rows, key=lambda measured: abs(math.log(measured / max(size, 1))))
        return replace(self, bytes=best, ms=rows[best])


@dataclass(frozen=True)
class ClusterFacts:
    """All hosts of a cluster, the head first.

    Attributes:
        all_reduce: the measurement over these hosts; None if there is none.
    """

    hosts: tuple[HostFacts, ...]
    all_reduce: AllReduce | None = None

    @property
    def head(self) -> HostFacts:
        """The host that starts runs and holds rank 0."""
        return self.hosts[0]

    @property
    def known_all_reduce(self) -> AllReduce | None:
        """The measurement; None if it was within a host but there are several, or the reverse."""
        measured = self.all_reduce
        return measured if measured and (measured.hosts > 1) == (len(self.hosts) > 1) else None

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as data for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "ClusterFacts":
        """Read the result of `to_dict`."""
        hosts = tuple(HostFacts.from_dict(host) for host in data["hosts"])
        measured = data.get("all_reduce")
        return cls(hosts, AllReduce(**measured) if measured else None)
