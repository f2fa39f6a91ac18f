"""Facts about common server models and cloud instances, for plans without real hosts.

The vendors publish these facts. Memory sizes are the installed sizes, of which the kernel reserves
1 to 3 %.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ftcluster.cluster.facts import ClusterFacts, HostFacts, NumaNode
from ftcluster.export.pods import TCMALLOC
from ftcluster_common.protocol.cpu_list import format_cpus

GIB = 1 << 30
MOST_HOSTS = 1024
ICE_LAKE = ("avx2", "avx512f", "avx512bw", "avx512vl", "avx512_vnni")
SAPPHIRE_RAPIDS = (*ICE_LAKE, "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16")
GRANITE_RAPIDS = (*SAPPHIRE_RAPIDS, "amx_fp16")
FLAGS: Mapping[str, tuple[str, ...]] = {
    "Ice Lake": ICE_LAKE,
    "Sapphire Rapids": SAPPHIRE_RAPIDS,
    "Granite Rapids": GRANITE_RAPIDS,
}


@dataclass(frozen=True)
class CommonHost:
    """A kind of host, as described by its vendor.

    Attributes:
        cores: number of cores per socket; each core has two hardware threads.
        nodes: number of NUMA nodes per socket in the factory settings. If the cores do not divide
            evenly, some of the first nodes have one more core.
        gigabits: network bandwidth in Gbit/s; 0 if the buyer chooses the network.
        source: publication with these facts.
    """

    cpu: str
    generation: str
    sockets: int
    cores: int
    memory_gib: int
    gigabits: float
    source: str
    nodes: int = 1


XEON, AWS = "Intel(R) Xeon(R) ", "AWS, Amazon EC2 instance types"
HOSTS: Mapping[str, CommonHost] = {
    "2x8480+": CommonHost(
        f"{XEON}Platinum 8480+", "Sapphire Rapids", 2, 56, 512, 0,
        "Intel ARK, Xeon Platinum 8480+; 16 modules of 32 GB, one per channel",
    ),
    "2x6980P": CommonHost(
        f"{XEON}6980P", "Granite Rapids", 2, 128, 1536, 0,
        "Intel ARK, Xeon 6980P; sglang's page on Xeon for NUMA nodes; 24 modules of 64 GB", 3,
    ),
    "c7i.metal-24xl": CommonHost(
        f"{XEON}Platinum 8488C", "Sapphire Rapids", 1, 48, 192, 37.5, AWS
    ),
    "c7i.metal-48xl": CommonHost(f"{XEON}Platinum 8488C", "Sapphire Rapids", 2, 48, 384, 50, AWS),
    "m7i.16xlarge": CommonHost(f"{XEON}Platinum 8488C", "Sapphire Rapids", 1, 32, 256, 25, AWS),
    "m6i.16xlarge": CommonHost(f"{XEON}Platinum 8375C", "Ice Lake", 1, 32, 256, 25, AWS),
}  # fmt: skip
NAMED = ", ".join(HOSTS)


def common_hosts(text: str) -> ClusterFacts | None:
    """Return the hosts that a name such as 4xm6i.16xlarge describes; None for any other text.

    The name has an optional number of hosts, followed by a kind of host: m7i.16xlarge, 2x8480+.

    >>> [host.name for host in common_hosts("2xm7i.16xlarge").hosts]
    ['node1', 'node2']
    """
    count, kind = 1, text
    if text not in HOSTS and (match := re.fullmatch(r"(\d{1,4})x(.+)", text)):
        count, kind = int(match[1]), match[2]
    if kind not in HOSTS or not 1 <= count <= MOST_HOSTS:
        return None
    return ClusterFacts(tuple(_facts(HOSTS[kind], f"node{n}") for n in range(1, count + 1)))


def with_sockets(text: str) -> str:
    """Return a kind of host with its number of sockets added; "" if there is no such kind.

    >>> with_sockets("10x8480+"), with_sockets("8480+"), with_sockets("m7i")
    ('10x2x8480+', '2x8480+', '')
    """
    count, _, cpu = text.rpartition("x")
    name = next((name for name in HOSTS if name.partition("x")[2] == cpu), "")
    return f"{count}x{name}" if name and count else name


def _facts(host: CommonHost, name: str) -> HostFacts:
    cores = host.sockets * host.cores
    memory = host.memory_gib * GIB
    flags = FLAGS[host.generation]
    speed = int(1000 * host.gigabits) or None
    nic = {"name": "eth0", "addresses": [name], "speed_mbits": speed, "mtu": 1500, "driver": ""}
    numa = _nodes(host, memory)
    return HostFacts(
        name=name, connection="ssh", cpu_model=host.cpu, cpu_flags=flags, cores=cores,
        threads=2 * cores, numa_nodes=len(numa), memory_bytes=memory, free_bytes=100 * 10**9,
        prefix="/opt/ftcluster", python="3.11", can_become_root=True,
        tcmalloc=TCMALLOC, network_address=name, network_interface="eth0",
        rank_user="", hostname=name, os="Linux", kernel="6", cpu_generation=host.generation,
        amx="usable" if "amx_tile" in flags else "absent", sockets=host.sockets, numa=numa,
        nics=(nic,), clock_offset_seconds=None,
    )  # fmt: skip


def _nodes(host: CommonHost, memory: int) -> tuple[NumaNode, ...]:
    """Return NUMA nodes with consecutive cores.

    The first hardware threads of all cores have the lowest CPU numbers; the second threads follow.
    """
    nodes: list[NumaNode] = []
    all_cores, first = host.sockets * host.cores, 0
    count = host.sockets * host.nodes
    for socket in range(host.sockets):
        for part in range(host.nodes):
            size = host.cores // host.nodes + (part < host.cores % host.nodes)
            cpus = range(first, first + size)
            both = [*cpus, *(cpu + all_cores for cpu in cpus)]
            first += size
            nodes.append(
                NumaNode(
                    len(nodes), size, memory // count, format_cpus(cpus),
                    socket_cpus={str(socket): format_cpus(both)},
                )
            )  # fmt: skip
    return tuple(nodes)
