"""Machines of the library, limited by a container, a job, the firmware or an administrator."""

from dataclasses import replace

from ftcluster_common.protocol.cpu_list import format_cpus, parse_cpus
from tests.unit.machines.machine import Machine, Node

GIB = 2**20  # in kB


def limited_machines(library: dict[str, Machine]) -> list[Machine]:
    """Return limited variants of a few real machines, because no public dump has such limits."""
    metal = library["sapphire-rapids-8488c-metal"]
    snc4 = library["sapphire-rapids-snc4"]
    flat = library["xeon-max-9480-flat"]
    alternating = library["xeon-e5-2696v4-alternating"]
    sub_numa = library["memorysidecaches"]
    cxl = Node(2, "", 256 * GIB, "14 24 10", 25000)
    ddr = [replace(node, bandwidth=200000, far=far)
           for node, far in zip(metal.nodes, ("10 21 14", "21 10 24"), strict=True)]  # fmt: skip
    half = format_cpus(range(24)) + "," + format_cpus(range(96, 120))
    return [
        replace(metal, name="8488c, quota of half its CPUs", quota=9600),
        replace(metal, name="8488c, quota of all but one CPU", quota=19100),
        replace(metal, name="8488c, quota of 24 CPUs", quota=2400),
        replace(metal, name="8488c, quota of 8 CPUs", quota=800),
        replace(metal, name="8488c, quota of half a CPU", quota=50),
        replace(alternating, name="E5-2696 v4, quota of 20 CPUs", quota=2000),
        replace(snc4, name="8480+ SNC4, quota of half its CPUs", quota=11200),
        replace(metal, name="8488c, half of it by cpuset", allowed=half, mems="0"),
        replace(metal, name="8488c, second threads of node 1 alone", allowed="144-191"),
        replace(metal, name="8488c, cpuset of node 0, memory of both", allowed="0-47,96-143"),
        replace(metal, name="8488c, cpuset of node 0, memory of node 1", allowed="0-47,96-143",
                mems="1"),
        replace(metal, name="8488c, 16 cores of node 0, 6 of node 1", allowed="0-15,48-53"),
        replace(metal, name="8488c, 16 cores of node 0, 10 of node 1", allowed="0-15,48-57"),
        replace(snc4, name="8480+ SNC4, memory of two nodes alone", mems="0,4"),
        replace(snc4, name="8480+ SNC4, cpuset of 3 nodes", allowed="0-41,112-153", mems="0-2"),
        replace(metal, name="8488c, half node of Slurm without cgroups", share=96),
        replace(metal, name="8488c, quarter node of Slurm without cgroups", share=48),
        replace(metal, name="8488c, whole node of Slurm", share=192),
        replace(alternating, name="E5-2696 v4, half node of Slurm", share=44),
        without(metal, "8488c, hyperthreads off", range(96, 192)),
        without(metal, "8488c, CPUs 0, 96 and 50 offline", (0, 96, 50)),
        without(snc4, "8480+ SNC4, one node's CPUs offline", [*range(14), *range(112, 126)]),
        replace(without(metal, "8488c, numa=off", ()),
                nodes=(Node(0, "0-191", 384 * GIB, "10"),)),
        replace(metal, name="8488c, with CXL memory", nodes=(*ddr, cxl)),
        replace(metal, name="8488c, all memory on node 1", nodes=(
            Node(0, metal.nodes[0].cpus, 0, "10 21"),
            Node(1, metal.nodes[1].cpus, 384 * GIB, "21 10"))),
        replace(flat, name="Max 9480, cache mode", nodes=flat.nodes[:2]),
        replace(flat, name="Max 9480, HBM alone",
                nodes=tuple(replace(node, kilobytes=64 * GIB) for node in flat.nodes[:2])),
        replace(flat, name="Max 9480 flat, HBM forbidden", mems="0-1"),
        replace(sub_numa, name="6230 SNC2, quota of half its CPUs", quota=4000),
    ]  # fmt: skip


def without(machine: Machine, name: str, offline: object) -> Machine:
    """Return the machine with these CPUs offline, so that the kernel shows them nowhere."""
    gone = set(offline)  # type: ignore[call-overload]

    def rest(text: str) -> str:
        return format_cpus(set(parse_cpus(text)) - gone)

    alive: dict[int, list[tuple[int, ...]]] = {}
    for core in sorted(set(machine.siblings.values())):
        if left := tuple(cpu for cpu in core if cpu not in gone):
            alive.setdefault(len(left), []).append(left)
    return replace(
        machine, name=name,
        sockets=tuple(rest(text) for text in machine.sockets if rest(text)),
        cores=tuple(tuple(map(format_cpus, zip(*table, strict=True))) for table in alive.values()),
        nodes=tuple(replace(node, cpus=rest(node.cpus)) for node in machine.nodes),
    )  # fmt: skip
