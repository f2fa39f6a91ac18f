"""The facts of each host, which preflight gathers and plan() decides by. Plain data."""

from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class NumaNode:
    """One NUMA node that may be used.

    Attributes:
        node: the kernel's number of it.
        cores: physical cores within the host's CPU set; 0 for a node of memory only.
        memory_bytes: its memory.
        cpus: CPU numbers of the cores' first usable hardware threads, such as "0-15,32".
        near: of a node of memory only, the nearest node with cores.
        hbm: whether it is high-bandwidth memory.
    """

    node: int
    cores: int
    memory_bytes: int
    cpus: str
    near: int | None = None
    hbm: bool = False

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "NumaNode":
        """Read a node as the module returned it; unknown keys are ignored."""
        return cls(**{key.name: data[key.name] for key in fields(cls) if key.name in data})


@dataclass(frozen=True)
class HostFacts:
    """One host, as the module `ftcluster.cluster.host_facts` describes it.

    Attributes:
        name: the inventory's name for the host.
        connection: Ansible's connection plugin (local, ssh, ...).
        cpu_model: the CPU's own name.
        cpu_flags: the instruction-set flags that matter for training (amx_bf16, avx512_bf16, ...).
        cores: physical cores this host may use, within its cpuset and cgroup quota.
        threads: hardware threads this host may use.
        numa_nodes: NUMA nodes with at least one usable core.
        memory_bytes: memory this host may use.
        free_bytes: free space on the file system of `prefix`.
        prefix: the folder that the cluster lives in on this host.
        python: version of the Python that the stack is made from, e.g. "3.11.7".
        can_become_root: whether `become` works there.
        tcmalloc: path of the tcmalloc library, or "" where there is none.
        network_address: the address other hosts reach it by.
        network_interface: the interface that has this address, or "".
        rank_user: the account that ranks run as, or "" for the login user.
        hostname: its own name.
        os: the system's name for people.
        kernel: the kernel's release.
        cpu_generation: Ice Lake, Sapphire Rapids, ..., or "other".
        amx: "usable", "refused" (by the kernel) or "absent".
        sockets: CPU packages with at least one usable thread.
        numa: the NUMA nodes that may be used, also those of memory only.
        nics: the network interfaces: name, addresses, speed_mbits (None: unknown), mtu.
        clock_offset_seconds: this host's clock minus the control node's; None where not measured.
        stack: name of the stack in use there.
        cpu_quota: CPUs' worth of time that the cgroup allows, 0.5 is possible; None without limit.
        openmp: path of Intel's OpenMP library, or "" where there is none.
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

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "HostFacts":
        """Read facts as the module returned them; unknown keys are ignored.

        Raises:
            KeyError, TypeError: these are no facts.
        """
        known = {field.name: data[field.name] for field in fields(cls) if field.name in data}
        lists = {name: tuple(known[name]) for name in ("cpu_flags", "nics")}
        numa = tuple(NumaNode.from_dict(node) for node in known["numa"])
        return cls(**{**known, **lists, "numa": numa})


@dataclass(frozen=True)
class ClusterFacts:
    """All hosts of a cluster, the head first.

    Attributes:
        hosts: facts of each host; the first one is the head, where rank 0 runs.
    """

    hosts: tuple[HostFacts, ...]

    @property
    def head(self) -> HostFacts:
        """The host that starts runs and holds rank 0."""
        return self.hosts[0]

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON-ready data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "ClusterFacts":
        """The inverse of `to_dict`."""
        return cls(hosts=tuple(HostFacts.from_dict(host) for host in data["hosts"]))
