"""Assign cores and local memory to each rank of a host. Pure functions only."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ftcluster.cluster.facts import HostFacts
from ftcluster.planning.topology import Domain, Topology, near_groups
from ftcluster_common.protocol.cpu_list import format_cpus

# A rank with fewer cores than this reserves no core for communication. Measured: gloo needs 0.07
# core-seconds to all-reduce 100 MB between two ranks, and up to twice as much between many ranks. A
# step needs 6 floating-point operations per parameter and token, and a core with AMX performs
# 0.3e12 operations a second. For 2,000 tokens, communication therefore takes 7 to 13 % of a step's
# core-seconds, which is about one core in 8 to 16.
COMMUNICATION_FROM = 8
# A host with fewer cores than this reserves no core for the system. One core of 64 is 1.6 %.
SYSTEM_FROM = 64


@dataclass(frozen=True)
class RankPlan:
    """The cores, memory and samples of one rank.

    Attributes:
        cpus: the rank's CPUs, such as "0-15".
        threads: number of OpenMP threads.
        memory: numbers of the NUMA nodes to allocate memory on first; if empty, the kernel decides.
        workers: CPUs of oneCCL's workers; "" without oneCCL. `cpus` excludes these CPUs if the rank
            has enough cores.
        samples: number of the rank's samples in a batch; 0 if the batch size is not known.
    """

    cpus: str
    threads: int
    memory: tuple[int, ...]
    workers: str = ""
    samples: int = 0


@dataclass(frozen=True)
class Layout:
    """The division of a host's cores among its ranks.

    Attributes:
        ranks: the plan of each rank, in the order of local ranks.
        cores: number of cores of the rank with the fewest cores, including its cores for
            communication.
        kept: number of cores of each rank that are reserved for communication.
        system: number of cores of the host that are reserved for the operating system.
        spare: number of unused cores that remain because all ranks have the same number of cores.
        floating: True if ranks are not bound to cores, because a quota limits the
            host's CPU time rather than its set of cores.
    """

    ranks: tuple[RankPlan, ...]
    cores: int
    kept: int
    system: int
    spare: int
    floating: bool


def rank_cores(topology: Topology, ranks: int) -> int:
    """Return the number of cores of the rank with the fewest cores, of `ranks` ranks on a host."""
    if topology.limited:
        return topology.host.cores // ranks
    return min(len(cpus) for cpus, _ in _shares(topology, topology.with_cores_for(ranks), ranks))


def spanning(topology: Topology, ranks: int) -> bool:
    """Return True if a rank has cores of several NUMA nodes, but shares a node with other ranks."""
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
        workers: number of oneCCL workers of each rank; 0 without oneCCL. A worker polls, so each
            worker gets its own core if the rank has enough cores.
        communication_cores: number of cores that each rank reserves for communication; at least one
            core remains for a thread. None reserves one core from COMMUNICATION_FROM cores on. With
            oneCCL workers, this argument is ignored.
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
    """Divide the cores of `used` among the ranks.

    Each rank gets whole domains, if possible. Otherwise each domain is divided among several ranks.
    If that is not possible either, all cores are divided into equal pieces.
    """
    if len(used) % ranks == 0:
        return [_all_of(group) for group in near_groups(topology.host, used, ranks)]
    inside = ranks // len(used)
    if ranks % len(used) == 0 and all(len(domain.cpus) >= inside for domain in used):
        return [(cpus, (domain,)) for domain in used for cpus in _pieces(domain.cpus, inside)]
    sockets = sorted({domain.sockets for domain in used})
    on_each = [[domain for domain in used if domain.sockets == socket] for socket in sockets]
    inside, rest = divmod(ranks, len(sockets))
    if len(sockets) > 1 and not rest and all(len(_all_of(part)[0]) >= inside for part in on_each):
        return [share for part in on_each for share in _shares(topology, part, inside)]
    everything, _ = _all_of([domain for part in on_each for domain in part])
    return [
        (cpus, tuple(domain for domain in used if set(domain.cpus) & set(cpus)))
        for cpus in _pieces(everything, ranks)
    ]


def _floating(topology: Topology, used: Sequence[Domain], ranks: int) -> list[_Share]:
    """Return the hardware threads that each rank may use if the kernel chooses the cores.

    Each rank gets whole domains, or shares a domain with other ranks. If neither is possible, each
    rank may use all hardware threads.
    """
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
    """Return the numbers of the NUMA nodes to allocate memory on first.

    These are the nearest nodes with high-bandwidth memory, if there are any. The result is empty if
    the kernel's default is right. If a core's node has no memory, the nearest node with memory
    replaces that node, because the kernel refuses to prefer a node without memory.
    """
    fast = tuple(node for domain in near for node in domain.hbm)
    with_cores = {number for domain in near for number in domain.nodes}
    nodes = {node.node for node in host.numa}
    having = {node.node for node in host.numa if node.memory_bytes} or nodes
    nearest = {node.node if node.node in having else node.near for node in host.numa
               if node.node in with_cores}  # fmt: skip
    if fast or not nearest <= having or nearest >= having:
        return fast
    return tuple(sorted(number for number in nearest if number is not None))
