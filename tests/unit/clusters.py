"""Hosts for tests of what is decided about them."""

from dataclasses import replace

from ftcluster.facts import ClusterFacts, HostFacts
from ftcluster.stacks import load_stacks

STACKS = load_stacks()

VM = HostFacts(
    name="localhost",
    connection="local",
    cpu_model="Intel(R) Xeon(R) Platinum 8488C",
    cpu_flags=("avx512f", "avx512_bf16", "amx_tile", "amx_bf16"),
    cores=2,
    threads=4,
    numa_nodes=1,
    memory_bytes=24 * 10**9,
    free_bytes=50 * 10**9,
    prefix="/opt/ftcluster",
    python="3.11.7",
    can_become_root=True,
    tcmalloc="/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4",
    network_address="127.0.0.1",
    network_interface="lo",
    rank_user="",
    hostname="localhost",
    os="Debian GNU/Linux 12 (bookworm)",
    kernel="6.1.0-18-amd64",
    cpu_generation="Sapphire Rapids",
    amx="usable",
    sockets=1,
    numa=({"node": 0, "cores": 2, "memory_bytes": 24 * 10**9},),
    nics=({"name": "eth0", "addresses": ["10.0.0.5"], "speed_mbits": 25000, "mtu": 1500},),
    clock_offset_seconds=0.001,
)


def cluster(*hosts: HostFacts) -> ClusterFacts:
    return ClusterFacts(hosts=hosts)


def host(name: str, **changes: object) -> HostFacts:
    values = {"name": name, "connection": "ssh", "network_address": name, **changes}
    return replace(VM, **values)  # type: ignore[arg-type]
