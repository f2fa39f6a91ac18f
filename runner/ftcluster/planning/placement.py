"""The cores and the local memory of each rank of a host. Pure functions only."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ftcluster.cluster.facts import HostFacts
from ftcluster_common.cpu_list import format_cpus, parse_cpus

# A rank with fewer cores reserves none for communication. gloo needs 0.07 core-seconds to
# all-reduce 100 MB between two ranks, up to twice as much between many (measured); a step needs
# 6 operations per parameter and token, of which a core with AMX does 0.3e12 a second. So for 2,000
# tokens communication takes 7 to 13 % of the core-seconds of a step: about one core of 8 to 16.
COMMUNICATION_FROM = 8
# A host with fewer cores reserves none for the system: one of 64 is 1.6 %.
SYSTEM_FROM = 64
SMALL_NODE = 0.5  # a node with fewer cores, relative to the largest one, would slow down all


@dataclass(frozen=True)
class Domain:
    """Cores with the same local memory.

    Attributes:
        nodes: the NUMA nodes' numbers; several if the kernel emulates nodes with the same cores.
        cpus: CPU numbers of the cores' first hardware threads.
        hbm: the nodes of high-bandwidth memory that these cores are nearest to.
    """

    nodes: tuple[int, ...]
    cpus: tuple[int, ...]
    hbm: tuple[int, ...]


@dataclass(frozen=True)
class RankPlan:
    """The cores, memory and samples of one rank.

    Attributes:
        cpus: the CPUs it may run on, such as "0-15".
        threads: OpenMP threads.
        memory: the NUMA nodes that its memory is allocated on first; none: the kernel's default.
        workers: with oneCCL, the CPUs of its workers, none of `cpus` if there are enough.
        samples: its part of a batch; 0 if the batch is not known.
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
        ranks: by local rank.
        cores: how many the rank with the fewest has, with those reserved for communication.
        kept: cores of each rank that are reserved for communication.
        system: cores of the host that are reserved for its system.
        spare: cores of the host that no rank has, because all ranks have equally many.
        floating: whether the kernel chooses the cores, because a quota limits the time and not the
            cores.
    """

    ranks: tuple[RankPlan, ...]
    cores: int
    kept: int
    system: int
    spare: int
    floating: bool


def domains(host: HostFacts) -> tuple[Domain, ...]:
    """The cores of a host by their local memory, in the nodes' order."""
    parts: list[Domain] = []
    for node in host.numa:
        cpus = parse_cpus(node.cpus)
        if not cpus:
            continue
        hbm = tuple(other.node for other in host.numa if other.hbm and other.near == node.node)
        shared = next((domain for domain in parts if set(domain.cpus) & set(cpus)), None)
        if shared:  # the same cores, as emulated nodes have
            parts[parts.index(shared)] = Domain(
                nodes=(*shared.nodes, node.node),
                cpus=tuple(dict.fromkeys((*shared.cpus, *cpus))),
                hbm=shared.hbm + hbm,
            )
        else:
            parts.append(Domain((node.node,), cpus, hbm))
    return tuple(parts)


def worthwhile(host: HostFacts) -> tuple[tuple[Domain, ...], tuple[Domain, ...]]:
    """The domains that ranks use by default, and those that would slow them down.

    With a quota only the largest domains, as many as have its cores.
    """
    everything = domains(host)
    most = max(len(domain.cpus) for domain in everything)
    used = [one for one in everything if len(one.cpus) >= SMALL_NODE * most]
    if limited(host):
        by_size = sorted(used, key=lambda one: -len(one.cpus))
        while len(by_size) > 1 and sum(len(one.cpus) for one in by_size[:-1]) >= host.cores:
            by_size.pop()
        used = [one for one in used if one in by_size]
    return tuple(used), tuple(one for one in everything if one not in used)


def limited(host: HostFacts) -> bool:
    """Return whether a quota allows less than all cores of a host."""
    cores = sum(len(domain.cpus) for domain in domains(host))
    return host.cpu_quota is not None and host.cpu_quota < cores


def even_counts(host: HostFacts) -> tuple[int, ...]:
    """Numbers of ranks with which each has equally many whole NUMA nodes, the highest first.

    No rank spans sockets if there are at least as many ranks as sockets: for two sockets with three
    nodes each, these are 6, 2 and 1.
    """
    count = len(worthwhile(host)[0])
    sockets = host.sockets if host.sockets and count % host.sockets == 0 else 1
    return tuple(
        ranks
        for ranks in range(count, 0, -1)
        if count % ranks == 0 and (ranks % sockets == 0 or sockets % ranks == 0)
    )


def lay_out(
    host: HostFacts,
    ranks: int,
    communicates: bool,
    workers: int = 0,
    communication_cores: int | None = None,
) -> Layout:
    """Divide a host's cores among its ranks.

    Args:
        host: it has at least as many cores as ranks.
        communicates: whether there are other ranks, on this host or another.
        workers: oneCCL's workers per rank, 0 without oneCCL; they poll, so each has a core of its
            own if the rank has enough.
        communication_cores: how many of each rank's, which leaves one for a thread; None: 1 from
            COMMUNICATION_FROM cores on. Not with oneCCL's workers.
    """
    used, _ = worthwhile(host)
    if ranks > sum(len(domain.cpus) for domain in used):
        used = domains(host)
    floating = limited(host)
    shares = _floating(used, ranks) if floating else _shares(used, ranks)
    cores = host.cores // ranks if floating else min(len(cpus) for cpus, _ in shares)
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
        usable = cpus[system:]
        threads = max(1, (cores if floating else len(usable)) - kept)
        rank = RankPlan(format_cpus(usable), threads, _memory(host, near))
        if workers:
            # the workers of ranks that share CPUs have different ones
            last = len(usable) - (index * workers % len(usable) if floating else 0)
            working = usable[last - workers : last]
            computing = [cpu for cpu in usable if not kept or cpu not in working]
            rank = replace(rank, cpus=format_cpus(computing), workers=format_cpus(working))
        plans.append(rank)
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


def _shares(used: Sequence[Domain], ranks: int) -> list[_Share]:
    """Whole domains for each rank, or several ranks in each, or else equal pieces of all cores."""
    if len(used) % ranks == 0:
        size = len(used) // ranks
        return [_all_of(used[first : first + size]) for first in range(0, len(used), size)]
    inside = ranks // len(used)
    if ranks % len(used) == 0 and all(len(domain.cpus) >= inside for domain in used):
        return [(cpus, (domain,)) for domain in used for cpus in _pieces(domain.cpus, inside)]
    everything, _ = _all_of(used)
    return [
        (cpus, tuple(domain for domain in used if set(domain.cpus) & set(cpus)))
        for cpus in _pieces(everything, ranks)
    ]


def _floating(used: Sequence[Domain], ranks: int) -> list[_Share]:
    """Whole domains, some for several ranks; all for all if their numbers do not divide."""
    if len(used) % ranks == 0:
        return _shares(used, ranks)
    if ranks % len(used) == 0:
        return [_all_of([domain]) for domain in used for _ in range(ranks // len(used))]
    return [_all_of(used)] * ranks


def _all_of(used: Sequence[Domain]) -> _Share:
    return tuple(cpu for domain in used for cpu in domain.cpus), tuple(used)


def _pieces(cpus: tuple[int, ...], count: int) -> Iterator[tuple[int, ...]]:
    size = len(cpus) // count
    for index in range(count):
        yield cpus[index * size : (index + 1) * size]


def _memory(host: HostFacts, near: Sequence[Domain]) -> tuple[int, ...]:
    """The nodes that memory is allocated on first: high-bandwidth memory if the cores have some."""
    fast = tuple(node for domain in near for node in domain.hbm)
    nodes = tuple(node for domain in near for node in domain.nodes)
    return fast or (nodes if len(nodes) < len(host.numa) else ())
