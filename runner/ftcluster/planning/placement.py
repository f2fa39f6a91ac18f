"""Assign cores and local memory to each rank of a host. Pure functions only."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ftcluster.cluster.facts import HostFacts
from ftcluster.planning.topology import Domain, Topology, near_groups
from ftcluster_common.protocol.cpu_list import format_cpus

# A rank with fewer cores reserves none for communication. gloo needs 0.07 core-seconds to
# all-reduce 100 MB between two ranks, up to twice as much between many (measured). A step needs
# 6 operations per parameter and token, and a core with AMX performs 0.3e12 a second. For 2,000
# tokens, communication therefore takes 7 to 13 % of a step: about one core in 8 to 16.
COMMUNICATION_FROM = 8
# A host with fewer cores reserves none for the system: one of 64 is 1.6 %.
SYSTEM_FROM = 64


@dataclass(frozen=True)
class RankPlan:
    """The cores, memory and samples of one rank.

    Attributes:
        cpus: the rank's CPUs, such as "0-15".
        threads: number of OpenMP threads.
        memory: NUMA nodes to allocate memory on first; if empty, the kernel's default.
        workers: CPUs of oneCCL's workers, outside `cpus` if there are enough; "" without oneCCL.
        samples: number of the rank's samples of a batch; 0 if the batch is not known.
    """

    cpus: str
    threads: int
    memory: tuple[int, ...]
    workers: str = ""
    samples: int = 0


@dataclass(frozen=True)
class Layout:
    """The cores of a host by rank.

    Attributes:
        ranks: the plan of each rank, by local rank.
        cores: number of cores of the rank with the fewest, including those for communication.
        kept: number of cores of each rank that are reserved for communication.
        system: number of cores of the host that are reserved for its system.
        spare: number of cores without rank, because all ranks have equally many.
        floating: True if the kernel chooses the cores, because a quota limits CPU time instead of
            the set of cores.
    """

    ranks: tuple[RankPlan, ...]
    cores: int
    kept: int
    system: int
    spare: int
    floating: bool


def rank_cores(topology: Topology, ranks: int) -> int:
    """Return the number of cores of the rank with the fewest, of `ranks` ranks on a host."""
    if topology.limited:
        return topology.host.cores // ranks
    return min(len(cpus) for cpus, _ in _shares(topology, topology.with_cores_for(ranks), ranks))


def spanning(topology: Topology, ranks: int) -> bool:
    """Return True if a rank has cores of several NUMA nodes without having all of them."""
    shares = _shares(topology, topology.with_cores_for(ranks), ranks)
    return any({*cpus} < {*_all_of(near)[0]} and len(near) > 1 for cpus, near in shares)


def lay_out(
    topology: Topology,
    ranks: int,
    communicates: bool,
    workers: int = 0,
    communication_cores: int | None = None,
) -> Layout:
    """Divide a host's cores among its ranks.

    Args:
        topology: topology of a host with at least as many cores as ranks.
        communicates: True if there are other ranks, on this host or another.
        workers: number of oneCCL's workers per rank, 0 without oneCCL; they poll, so each has its
            own core if the rank has enough.
        communication_cores: number of each rank's cores for communication, leaving at least one for
            a thread; None: 1 from COMMUNICATION_FROM cores on. Ignored with oneCCL's workers.
    """
    host, floating = topology.host, topology.limited
    used = topology.with_cores_for(ranks)
    shares = (_floating if floating else _shares)(topology, used, ranks)
    cores = rank_cores(topology, ranks)
    kept = int(communicates and cores >= COMMUNICATION_FROM)
    if communication_cores is not None:
        kept = min(communication_cores, cores - 1)
    if workers:
        kept = workers if cores > workers else 0
    second_threads = host.threads > host.cores
    system = int(
        ranks == 1 and host.cores >= SYSTEM_FROM and not (kept or second_threads or floating)
    )
    plans = []
    for index, (cpus, near) in enumerate(shares):
        usable = computing = cpus[system:]
        working: tuple[int, ...] = ()
        memory = _memory(host, near)
        threads = max(1, (cores if floating else len(usable)) - kept)
        if workers:
            # the workers of ranks that share CPUs get different CPUs
            last = len(usable) - (index * workers % len(usable) if floating else 0)
            working = usable[last - workers : last]
            computing = tuple(cpu for cpu in usable if not kept or cpu not in working)
        plans.append(RankPlan(format_cpus(computing), threads, memory, format_cpus(working)))
    whole = sum(len(domain.cpus) for domain in used)
    return Layout(
        ranks=tuple(plans),
        cores=cores - system,
        kept=kept,
        system=system,
        spare=0 if floating else whole - sum(len(cpus) for cpus, _ in shares),
        floating=floating,
    )


_Share = tuple[tuple[int, ...], tuple[Domain, ...]]  # the CPUs of a rank, and their domains


def _shares(topology: Topology, used: Sequence[Domain], ranks: int) -> list[_Share]:
    """Return whole domains for each rank, or shared domains, or else equal pieces of all cores."""
    if len(used) % ranks == 0:
        return [_all_of(group) for group in near_groups(topology.host, used, ranks)]
    inside = ranks // len(used)
    if ranks % len(used) == 0 and all(len(domain.cpus) >= inside for domain in used):
        return [(cpus, (domain,)) for domain in used for cpus in _pieces(domain.cpus, inside)]
    sockets = sorted({domain.sockets for domain in used})
    on_each = [[domain for domain in used if domain.sockets == socket] for socket in sockets]
    inside, rest = divmod(ranks, len(sockets))
    if len(sockets) > 1 and not rest and all(len(_all_of(own)[0]) >= inside for own in on_each):
        return [share for own in on_each for share in _shares(topology, own, inside)]
    everything, _ = _all_of([domain for own in on_each for domain in own])
    return [
        (cpus, tuple(domain for domain in used if set(domain.cpus) & set(cpus)))
        for cpus in _pieces(everything, ranks)
    ]


def _floating(topology: Topology, used: Sequence[Domain], ranks: int) -> list[_Share]:
    """Return all hardware threads of whole domains, some shared by ranks; or all for each rank."""
    groups: Sequence[Sequence[Domain]] = [used] * ranks
    if len(used) % ranks == 0:
        groups = near_groups(topology.host, used, ranks)
    elif ranks % len(used) == 0:
        groups = [[domain] for domain in used for _ in range(ranks // len(used))]
    return [
        (tuple(cpu for domain in group for cpu in domain.threads), tuple(group)) for group in groups
    ]


def _all_of(used: Sequence[Domain]) -> _Share:
    return tuple(cpu for domain in used for cpu in domain.cpus), tuple(used)


def _pieces(cpus: tuple[int, ...], count: int) -> Iterator[tuple[int, ...]]:
    size = len(cpus) // count
    for index in range(count):
        yield cpus[index * size : (index + 1) * size]


def _memory(host: HostFacts, near: Sequence[Domain]) -> tuple[int, ...]:
    """Return the nodes to allocate memory on first: high-bandwidth memory, if the cores have some.

    If a core's own node has no memory, the nearest node with memory replaces it, because the kernel
    refuses to prefer a node without memory.
    """
    fast = tuple(node for domain in near for node in domain.hbm)
    own = {number for domain in near for number in domain.nodes}
    nodes = {node.node for node in host.numa}
    having = {node.node for node in host.numa if node.memory_bytes} or nodes
    nearest = {node.node if node.node in having else node.near for node in host.numa
               if node.node in own}  # fmt: skip
    if fast or not nearest <= having or nearest >= having:
        return fast
    return tuple(sorted(number for number in nearest if number is not None))
