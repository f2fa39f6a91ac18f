"""Explain the plan's decisions in words. Pure functions only.

Each public function returns the value of a decision and its reason, both as text.
"""

from collections.abc import Sequence

from ftcluster.cluster.facts import ClusterFacts, HostFacts
from ftcluster.planning.placement import COMMUNICATION_FROM, SYSTEM_FROM, Layout
from ftcluster.text.host_names import short_names
from ftcluster.text.plural import counted
from ftcluster_common.protocol.launch import GLOO, RENDEZVOUS_PORTS
from ftcluster_common.protocol.network import TCP
from ftcluster_common.recipe import Recipe

Reason = tuple[str, str]
WORTH_LEAVING_OUT = 1.2  # minimum speed-up without small hosts that is worth mentioning


def threads(host: HostFacts, layout: Layout, world: int, workers: int, asked: str) -> Reason:
    """Explain the number of OpenMP threads of each rank.

    Args:
        workers: number of oneCCL workers of each rank; 0 without oneCCL.
        asked: source of the number of cores reserved for communication; "" if the plan chose it.
    """
    counts = sorted({rank.threads for rank in layout.ranks})
    value = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    if layout.floating:
        cpus = f"{host.cpu_quota:g} CPU{'s' * (host.cpu_quota != 1)}"
        why = (
            f"a quota of {cpus} for {counted(len(layout.ranks), 'rank')}; "
            "the kernel chooses the cores, because other processes may also use all of them"
        )
    else:
        why = f"{counted(layout.cores, 'core')} per rank" + (" or more" if len(counts) > 1 else "")
        if host.threads > host.cores:
            why += ", without second hardware threads, which share the cores' execution units"
        if layout.spare:
            why += (
                f", {counted(layout.spare, 'core')} unused so that all ranks have the same number"
            )
    return value, f"{why}; {_communication(layout, world, workers, asked)}"


def _communication(layout: Layout, world: int, workers: int, asked: str) -> str:
    if workers:
        cpus = ",".join(rank.workers for rank in layout.ranks)
        if layout.kept:
            return f"CPUs {cpus} are reserved for oneCCL's workers, which poll all the time"
        return f"CPUs {cpus} are shared with oneCCL's workers, because no rank has a core to spare"
    if asked:
        return f"cores reserved for communication: {layout.kept} of {layout.cores} ({asked})"
    if layout.kept:
        return (
            f"1 of {layout.cores} is reserved for communication, which would otherwise slow down a "
            "thread that all others wait for"
        )
    if world == 1:
        return "none is reserved for communication, because there is no other rank"
    return (
        f"none is reserved for communication, because 1 of {layout.cores} would cost more than "
        f"it gains (one is reserved from {COMMUNICATION_FROM} cores on)"
    )


def system(host: HostFacts, layout: Layout) -> Reason:
    """Explain the number of cores that are reserved for the host's own services."""
    if layout.system:
        return (
            "1",
            "the host's services would otherwise slow down a thread that all others wait for",
        )
    if layout.floating:
        return "0", "the quota is for the ranks alone"
    if host.threads > host.cores:
        return "0", "the host's services run on the second hardware threads"
    if layout.kept:
        return "0", "the host's services run on the cores reserved for communication"
    return "0", (
        f"the host's services need little, and 1 core of {host.cores} is {1 / host.cores:.0%} of "
        f"the host (one is reserved from {SYSTEM_FROM} cores on)"
    )


def memory(host: HostFacts, layout: Layout) -> Reason:
    """Explain on which NUMA nodes the memory of each rank is allocated first."""
    if len(host.numa) == 1:
        return "the kernel's default", "there is one NUMA node"
    having = any(node.memory_bytes for node in host.numa)
    without = [n.node for n in host.numa if n.cores and having and not n.memory_bytes]
    if not any(rank.memory for rank in layout.ranks):
        if without:
            have = "has" if len(without) == 1 else "have"
            why = f"{_nodes(without)} {have} no usable memory; the kernel uses the nearest memory"
            return "the kernel's default", why
        return "the kernel's default", "each rank has cores on all nodes, each with its own memory"
    texts = [",".join(map(str, rank.memory)) or "any" for rank in layout.ranks]
    several = len({*texts}) > 1 or "," in texts[0]
    nodes = f"node{'s' * several} {' | '.join(texts)}"
    fast = [node for node in host.numa if node.hbm]
    if fast:
        size = min(node.memory_bytes for node in fast) / 2**30
        return nodes, (
            f"the high-bandwidth memory nearest to the rank's cores; after its {size:.0f} GiB per "
            "node the kernel uses DDR"
        )
    where = "local to the rank's cores"
    if without:
        have = "has" if len(without) == 1 else "have"
        where += f", or the nearest memory for {_nodes(without)}, which {have} no usable memory"
    return nodes, f"{where}; when a node is full, the kernel uses other nodes"


def _nodes(numbers: Sequence[int]) -> str:
    return f"node{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def allocator(host: HostFacts, preloaded: str, user_reason: str) -> Reason:
    """Explain the choice of the preloaded allocator.

    Args:
        preloaded: path of the allocator's library; "" if none is preloaded.
        user_reason: reason to report if the user chose the allocator; "" if the plan chose it.
    """
    if user_reason:
        return preloaded or "libc's", user_reason
    if host.tcmalloc:
        return host.tcmalloc, "tcmalloc is installed; a step takes 13 to 27 % less time with it"
    return "libc's", "tcmalloc is not installed; ftcluster setup with root installs it"


def openmp(host: HostFacts) -> Reason:
    """Explain the choice of the OpenMP library."""
    if host.openmp:
        return host.openmp, (
            "Intel's OpenMP is installed and up to 10 % faster; its threads sleep after waiting "
            "for 1 ms instead of 200 ms, so that other threads can use the core"
        )
    return "torch's own", "Intel's libiomp5 is not installed, so KMP_ variables have no effect"


def interface(host: HostFacts, hosts: int) -> Reason:
    """Explain which network interface the ranks use."""
    if not host.network_interface:
        return "the ranks' own choice", (
            "no network interface has the host's address; to list the addresses: ip address"
        )
    if hosts > 1:
        return host.network_interface, (
            "the other hosts use its address; by default, gloo would use the interface that the "
            "host's name resolves to"
        )
    return host.network_interface, "all ranks are on this host, and no other host can connect"


def provider(network: Reason, backend: str) -> Reason:
    """Explain the choice of libfabric's provider between hosts. gloo does not use libfabric."""
    value, why = network
    only_mpi = "; only MPI uses it, gloo uses TCP" if backend == GLOO and value != TCP else ""
    return value, why + only_mpi


def synchronization(recipe: Recipe, hosts: int, world: int) -> Reason:
    """Explain when ranks exchange their updates with `sync: local`."""
    if world == 1:
        return "each step", "there is only one rank"
    training = recipe.training
    return (
        f"every {training.sync_steps} steps, in {training.sync_dtype}",
        f"set in recipe {recipe.name}: {'hosts' if hosts > 1 else 'ranks'} take local steps "
        "in between, so the model differs from training with an all-reduce in each step",
    )


def rendezvous(facts: ClusterFacts) -> Reason:
    """Explain the address at which the ranks connect to each other."""
    return (
        f"{facts.head.network_address}, a free port from {RENDEZVOUS_PORTS.start} on",
        f"{facts.head.name} is the head; the port is chosen at the launch",
    )


def pace(hosts: Sequence[tuple[str, Sequence[int]]]) -> Reason | None:
    """Explain which ranks slow down the others, and by how much; None without a noticeable effect.

    Ranks have equal parts of a batch, so all ranks wait for the rank with the fewest threads.

    Args:
        hosts: name of each host, and the number of threads of each of its ranks.
    """

    def speed(least: int) -> int:
        """Return the number of busy threads if only hosts with `least` threads per rank are used.

        Threads beyond `least` in a rank would wait for the other ranks.
        """
        return least * sum(len(threads) for _, threads in hosts if min(threads) >= least)

    smallest = sorted({min(threads) for _, threads in hosts})
    fewest, best = smallest[0], max(smallest, key=speed)
    most = max(count for _, threads in hosts for count in threads)
    slowest = short_names([name for name, threads in hosts if min(threads) == fewest])
    wait = f"ranks have equal parts of a batch, so ranks with up to {most} threads wait for ranks "
    wait += f"with {fewest}"
    if speed(best) >= WORTH_LEAVING_OUT * speed(fewest):
        slow = short_names([name for name, threads in hosts if min(threads) < best])
        times = speed(best) / speed(fewest)
        return (
            f"set by {slowest}",
            f"{wait}; without {slow} the run would be {times:.1f} times as fast",
        )
    uneven = [name for name, threads in hosts if max(threads) >= WORTH_LEAVING_OUT * min(threads)]
    if uneven:
        return f"set by {slowest}", (
            f"{wait}: the NUMA nodes of {short_names(uneven)} have unequal numbers of cores; "
            "use --ranks-per-host to divide the cores differently"
        )
    return None
