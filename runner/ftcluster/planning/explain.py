"""What was decided for a host and why, in words for people. Pure functions only.

Each returns the value of a decision and its reason.
"""

from ftcluster.cluster.facts import ClusterFacts, HostFacts
from ftcluster.planning.placement import COMMUNICATION_FROM, SYSTEM_FROM, Layout
from ftcluster_common.launch import RENDEZVOUS_PORTS

Reason = tuple[str, str]


def threads(host: HostFacts, layout: Layout, world: int, workers: int) -> Reason:
    """OpenMP threads of each rank."""
    counts = sorted({rank.threads for rank in layout.ranks})
    value = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    if layout.floating:
        why = (
            f"the CPU quota of {host.cpu_quota:g} cores for {_ranks(len(layout.ranks))}; on which "
            "cores is the kernel's choice, as a quota leaves all of them to others too"
        )
    else:
        why = f"{_cores(layout.cores)} a rank" + (" or more" if len(counts) > 1 else "")
        if host.threads > host.cores:
            why += ", without their second hardware threads, which share the cores' units"
        if layout.spare:
            why += f", {_cores(layout.spare)} left over so that all ranks have as many"
    return value, f"{why}; {_communication(layout, world, workers)}"


def _communication(layout: Layout, world: int, workers: int) -> str:
    if workers:
        cpus = ",".join(rank.workers for rank in layout.ranks)
        if layout.kept:
            return f"CPUs {cpus} are kept for oneCCL's workers, which poll all the time"
        return f"CPUs {cpus} are shared with oneCCL's workers, as no rank has a core to spare"
    if layout.kept:
        return (
            f"one of {layout.cores} is kept for communication, which else slows a thread that all "
            "others wait for"
        )
    if world == 1:
        return "none is kept for communication, as there is no other rank"
    return (
        f"none is kept for communication, as one of {layout.cores} would cost more than it brings "
        f"(kept from {COMMUNICATION_FROM} on)"
    )


def system(host: HostFacts, layout: Layout) -> Reason:
    """Cores that no rank has, for the host's own services."""
    if layout.system:
        return "1", "its services would else hold up a thread that all others wait for"
    if layout.floating:
        return "0", "the quota is the ranks' alone"
    if host.threads > host.cores:
        return "0", "its services find room on the second hardware threads"
    if layout.kept:
        return "0", "its services find room on what is kept for communication"
    return "0", (
        f"its services need little, and one of {host.cores} would be {1 / host.cores:.0%} of the "
        f"host (kept from {SYSTEM_FROM} on)"
    )


def memory(host: HostFacts, layout: Layout) -> Reason:
    """The NUMA nodes that each rank's memory is taken from first."""
    if len(host.numa) == 1:
        return "as the kernel does", "there is one NUMA node"
    if not any(rank.memory for rank in layout.ranks):
        return "as the kernel does", "each rank has cores of all nodes, and memory beside each"
    nodes = " | ".join(",".join(map(str, rank.memory)) for rank in layout.ranks)
    fast = [node for node in host.numa if node.hbm]
    if fast:
        size = min(node.memory_bytes for node in fast) / 2**30
        return f"nodes {nodes}", (
            f"high-bandwidth memory nearest to the rank's cores; beyond its {size:.0f} GiB a node "
            "the kernel goes on with DDR"
        )
    return f"nodes {nodes}", "beside the rank's cores; a full node goes over into the others"


def allocator(host: HostFacts) -> Reason:
    """The allocator that is preloaded."""
    if host.tcmalloc:
        return host.tcmalloc, "tcmalloc was found there; it takes 13 to 27 % off a step"
    return "libc's", "no tcmalloc on this host; ftcluster setup with root installs it"


def openmp(host: HostFacts) -> Reason:
    """The OpenMP library."""
    if host.openmp:
        return host.openmp, (
            "Intel's was found there, up to 10 % faster; its threads wait 1 ms and not 200 before "
            "they sleep, so that others can have the core"
        )
    return "torch's own", "no libiomp5 on this host; KMP_ variables would do nothing"


def interface(host: HostFacts, hosts: int) -> Reason:
    """The network interface that ranks use."""
    if host.network_interface:
        why = (
            "it has the address that the others reach it by; gloo by itself takes the one that the "
            "host's name leads to"
            if hosts > 1
            else "all ranks are on this host, and no other one reaches it"
        )
        return host.network_interface, why
    return "the ranks' own choice", "no interface is known to have its address; see ip address"


def meeting_point(facts: ClusterFacts) -> Reason:
    """Where ranks find each other."""
    return (
        f"{facts.head.network_address}, a free port from {RENDEZVOUS_PORTS.start} on",
        f"{facts.head.name} is the head; the port is taken at the launch",
    )


def _ranks(count: int) -> str:
    return f"{count} rank{'s' * (count != 1)}"


def _cores(count: int) -> str:
    return f"{count} core{'s' * (count != 1)}"
