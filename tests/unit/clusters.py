"""Facts of hosts for tests of plans and decisions."""

import json
from dataclasses import replace
from typing import Any

from ftcluster.cluster.facts import ClusterFacts, HostFacts, NumaNode
from ftcluster.stacks.catalog import load_stacks
from ftcluster_common.protocol.launch import Launch, mpirun_command

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
    numa=(NumaNode(node=0, cores=2, memory_bytes=24 * 10**9, cpus="0-1"),),
    nics=({"name": "eth0", "addresses": ["10.0.0.5"], "speed_mbits": 25000, "mtu": 1500},),
    clock_offset_seconds=0.001,
)


def cluster(*hosts: HostFacts) -> ClusterFacts:
    return ClusterFacts(hosts=hosts)


def host(name: str, **changes: object) -> HostFacts:
    """Return facts like VM with changes; cores are divided evenly among `numa_nodes`."""
    values = {"name": name, "connection": "ssh", "network_address": name, **changes}
    values.setdefault("network_interface", "eth0")
    made = replace(VM, **values)  # type: ignore[arg-type]
    if "cores" in changes or "numa_nodes" in changes:
        made = replace(made, threads=2 * made.cores)
        if "numa" not in changes:
            made = replace(made, numa=nodes(made.cores, made.numa_nodes, made.memory_bytes))
    return replace(made, **{k: v for k, v in values.items() if k == "threads"})  # type: ignore[arg-type]


def nodes(cores: int, count: int, memory_bytes: int = 256 * 10**9) -> tuple[NumaNode, ...]:
    """Return NUMA nodes whose cores are numbered consecutively."""
    each = cores // count
    return tuple(
        NumaNode(
            node=number,
            cores=each,
            memory_bytes=memory_bytes // count,
            cpus=f"{number * each}-{number * each + each - 1}",
        )
        for number in range(count)
    )


def placed(launch: Launch) -> dict[str, Any]:
    """Return the placement that ranks read from the plan."""
    found: dict[str, Any] = json.loads(mpirun_command(launch).env["FTCLUSTER_PLACEMENT"])
    return found
