# Apache-2.0 (see LICENSE)
"""The schema of a host's facts; a test compares the documentation of host_facts with it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NumaNodeSchema:
    """A NUMA node that ranks may use."""

    node: int
    cores: int
    cpus: str
    socket_cpus: dict[str, str]
    memory_bytes: int
    near: int | None
    hbm: bool
    distances: list[int]


@dataclass(frozen=True)
class NicSchema:
    """A network interface."""

    name: str
    addresses: list[str]
    speed_mbits: int | None
    mtu: int
    driver: str


@dataclass(frozen=True)
class RdmaSchema:
    """An RDMA device."""

    name: str
    driver: str
    iwarp: bool
    active: bool
    interfaces: list[str]
    opens: bool


@dataclass(frozen=True)
class RefusalSchema:
    """The reason why a Python or a prefix is refused, with advice."""

    what: str
    hint: str


@dataclass(frozen=True)
class PythonSchema:
    """A Python on the host."""

    version: str
    path: str


@dataclass(frozen=True)
class OtherClusterSchema:
    """Another cluster on the host."""

    prefix: str
    user: str


@dataclass(frozen=True)
class ServiceSchema:
    """A program of another account that listens on a port."""

    port: int
    user: str


@dataclass(frozen=True)
class HostFactsSchema:
    """The facts that a host reports about itself."""

    hostname: str
    machine: str
    kernel: str
    os: str
    libc: str
    machine_id: str
    cpu_model: str
    cpu_flags: list[str]
    cpu_generation: str
    amx: str
    threads: int
    cores: int
    cpu_quota: float | None
    sockets: int
    rank_user_origin: str
    numa_nodes: int
    numa: list[NumaNodeSchema]
    memory_bytes: int
    nics: list[NicSchema]
    rdma: list[RdmaSchema]
    rdma_libraries: list[str]
    locks_memory: bool
    network_address: str
    network_interface: str
    ssh_port: int
    prefix: str
    prefix_writable: bool
    read_only: list[str]
    prefix_refused: RefusalSchema | None
    has_stack: bool
    current: str
    stacks: list[str]
    node_package: str
    record: str
    free_bytes: int
    python: str
    pythons: list[PythonSchema]
    python_refused: RefusalSchema | None
    user: str
    is_root: bool
    tcmalloc: str
    other_clusters: list[OtherClusterSchema]
    firewall_hosts: list[str]
    openmp: str
    local_ports: list[str]
    services: list[ServiceSchema]
    host_firewall: str
    firewall_rules: bool


@dataclass(frozen=True)
class MeasuredFactsSchema:
    """Times in seconds that the control node measures; None if the measurement failed."""

    clock_offset_seconds: float | None
    clock_error_seconds: float | None
