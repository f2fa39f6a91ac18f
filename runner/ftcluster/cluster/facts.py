"""The facts of each host. The role preflight gathers them, and `plan` uses them. Plain data."""

import math
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ansible_collections.ftcluster.cluster.plugins.plugin_utils.host_answer import known_facts

from ftcluster_common.protocol.network import AUTO, HostNetwork, RdmaDevice

MOST_SAID = 3  # maximum number of problems to show per host
SETUP, BENCH = "setup", "bench"  # the commands that measure an all-reduce


@dataclass(frozen=True)
class NumaNode:
    """A NUMA node that ranks may use.

    Attributes:
        cores: number of physical cores within the host's CPU set; 0 for a node with only memory.
        cpus: CPU numbers of the cores' first usable hardware threads, such as "0-15,32".
        near: number of the nearest node with cores if this node has no cores, or of the nearest
            node with memory if this node has no memory.
        socket_cpus: CPU numbers of all usable hardware threads by socket; empty in facts that an
            older version gathered.
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
        """Return a node from the result of the module host_facts. Unknown keys are ignored."""
        values = {key.name: data[key.name] for key in fields(cls) if key.name in data}
        return cls(**{**values, "distances": tuple(values.get("distances", ()))})


@dataclass(frozen=True)
class HostFacts:
    """The facts of a host.

    The module `ftcluster.cluster.host_facts` documents the facts that are not listed here.

    Attributes:
        name: name of the host in the inventory.
        connection: Ansible's connection plugin (local, ssh, ...).
        can_become_root: True if Ansible's `become` works on the host.
        rank_user: the account that ranks run as; "" for the login user.
        stack: name of the host's active stack.
        network_provider: libfabric provider that the inventory sets; "auto" if the plan chooses.
        price_per_hour: price from the inventory, such as "4.08 USD"; "" if the inventory sets none.
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
        """Return facts from the result of the module host_facts. Unknown keys are ignored.

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
    """Return the name of a stack, given the path of its folder.

    >>> stack_name("/opt/ftcluster/stacks/intel-2.8-1b2c3d4e5f60")
    'intel-2.8'
    """
    return Path(folder).name.rpartition("-")[0]


@dataclass(frozen=True)
class AllReduce:
    """The measured time of an all-reduce in fp32 over the hosts of a cluster.

    Attributes:
        ms: time in milliseconds for `bytes` bytes, by backend of torch.distributed.
        hosts: number of hosts that took part.
        by: the command that made the measurement, SETUP or BENCH.
        sizes: times in milliseconds by backend, for other tensor sizes. The keys are sizes in
            bytes, as strings.
    """

    ms: dict[str, float]
    bytes: int
    hosts: int
    by: str
    sizes: dict[str, dict[str, float]] = field(default_factory=dict)

    def nearest(self, size: int) -> "AllReduce":
        """Return the measurement for the tensor size nearest to `size` bytes on a log scale."""
        rows = {self.bytes: self.ms} | {int(text): ms for text, ms in self.sizes.items()}
        best = min(rows, key=lambda measured: abs(math.log(measured / max(size, 1))))
        return replace(self, bytes=best, ms=rows[best])


@dataclass(frozen=True)
class ClusterFacts:
    """All hosts of a cluster, the head first.

    Attributes:
        all_reduce: the all-reduce measurement over these hosts; None if there is none.
    """

    hosts: tuple[HostFacts, ...]
    all_reduce: AllReduce | None = None

    @property
    def head(self) -> HostFacts:
        """The host that starts runs and has rank 0."""
        return self.hosts[0]

    @property
    def known_all_reduce(self) -> AllReduce | None:
        """The all-reduce measurement, if it applies to these hosts.

        A measurement within one host does not apply to several hosts, and a measurement over
        several hosts does not apply to one host.
        """
        measured = self.all_reduce
        return measured if measured and (measured.hosts > 1) == (len(self.hosts) > 1) else None

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as data for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "ClusterFacts":
        """Convert the output of `to_dict` back to facts."""
        hosts = tuple(HostFacts.from_dict(host) for host in data["hosts"])
        measured = data.get("all_reduce")
        return cls(hosts, AllReduce(**measured) if measured else None)
