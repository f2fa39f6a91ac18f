"""The facts of each host, which preflight gathers and plan() decides by. Plain data."""

import math
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ansible_collections.ftcluster.cluster.plugins.plugin_utils.host_answer import known_facts

from ftcluster_common.protocol.network import AUTO, HostNetwork, RdmaDevice

MOST_SAID = 3  # of what is wrong with a host
SETUP, BENCH = "setup", "bench"  # the commands that measure an all-reduce


@dataclass(frozen=True)
class NumaNode:
    """One NUMA node that may be used.

    Attributes:
        cores: physical cores within the host's CPU set; 0 for a node of memory only.
        cpus: CPU numbers of the cores' first usable hardware threads, such as "0-15,32".
        near: the nearest node with cores, for a node without; or with memory, for one without.
        socket_cpus: all its usable hardware threads by socket; none in facts of an older setup.
        distances: to each node of the host; none where they are not known.
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
        """Read a node as the module returned it; unknown keys are ignored."""
        values = {key.name: data[key.name] for key in fields(cls) if key.name in data}
        return cls(**{**values, "distances": tuple(values.get("distances", ()))})


@dataclass(frozen=True)
class HostFacts:
    """One host: facts that the module `ftcluster.cluster.host_facts` documents, and these.

    Attributes:
        name: the inventory's name for the host.
        connection: Ansible's connection plugin (local, ssh, ...).
        can_become_root: whether `become` works there.
        rank_user: the account that ranks run as, or "" for the login user.
        stack: name of the stack in use there.
        network_provider: libfabric's provider that the inventory asks for, or "auto".
        price_per_hour: as the inventory has it, such as "4.08 USD"; "" where it has none.
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
        """Read facts as the module returned them; unknown keys are ignored.

        Raises:
            KeyError, TypeError, ValueError: these are no facts.
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
    """The stack of a folder such as /opt/ftcluster/stacks/native-1b2c3d4e5f60.

    >>> stack_name("/opt/ftcluster/stacks/intel-2.8-1b2c3d4e5f60")
    'intel-2.8'
    """
    return Path(folder).name.rpartition("-")[0]


@dataclass(frozen=True)
class AllReduce:
    """The measured time of an all-reduce in fp32 over the hosts of a cluster.

    Attributes:
        ms: by backend of torch.distributed.
        hosts: how many took part.
        by: SETUP or BENCH.
        sizes: milliseconds by backend for other sizes, which are bytes as text.
    """

    ms: dict[str, float]
    bytes: int
    hosts: int
    by: str
    sizes: dict[str, dict[str, float]] = field(default_factory=dict)

    def nearest(self, size: int) -> "AllReduce":
        """The measurement of the size that is nearest to so many bytes, by their ratio."""
        rows = {self.bytes: self.ms} | {int(text): ms for text, ms in self.sizes.items()}
        best = min(rows, key=lambda measured: abs(math.log(measured / max(size, 1))))
        return replace(self, bytes=best, ms=rows[best])


@dataclass(frozen=True)
class ClusterFacts:
    """All hosts of a cluster, the head first.

    Attributes:
        all_reduce: None where it was not measured.
    """

    hosts: tuple[HostFacts, ...]
    all_reduce: AllReduce | None = None

    @property
    def head(self) -> HostFacts:
        """The host that starts runs and holds rank 0."""
        return self.hosts[0]

    @property
    def known_all_reduce(self) -> AllReduce | None:
        """The measurement, unless it was within a host and these are several, or the reverse."""
        measured = self.all_reduce
        return measured if measured and (measured.hosts > 1) == (len(self.hosts) > 1) else None

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as data for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "ClusterFacts":
        """Read what `to_dict` returns."""
        hosts = tuple(HostFacts.from_dict(host) for host in data["hosts"])
        measured = data.get("all_reduce")
        return cls(hosts, AllReduce(**measured) if measured else None)
