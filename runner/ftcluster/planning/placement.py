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
        cpus: CPU numbers of the cores' first hardware threads, those of a socket together.
        threads: CPU numbers of all their usable hardware threads, as far as these are known.
        sockets: those that the cores are on.
        hbm: the nodes of high-bandwidth memory that these cores are nearest to.
    """

    nodes: tuple[int, ...]
    cpus: tuple[int, ...]
    threads: tuple[int, ...]
    sockets: tuple[int, ...]
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
    """The cores of a host by their local memory, in the nodes' order.

    A node whose cores are on several sockets is divided by these where other nodes are on one each,
    as it has the cores of a socket without memory; and where each socket has COMMUNICATION_FROM
    cores, which a hypervisor's often have not.
    """
    socket_of = {
        cpu: int(socket)
        for node in host.numa
        for socket, text in node.socket_cpus.items()
        for cpu in parse_cpus(text)
    }
    firsts = {cpu for node in host.numa for cpu in parse_cpus(node.cpus)}

    def domain(nodes: tuple[int, ...], threads: Sequence[int], hbm: tuple[int, ...]) -> Domain:
        ordered = sorted(threads, key=lambda cpu: socket_of.get(cpu, 0))
        sockets = tuple(sorted({socket_of.get(cpu, 0) for cpu in threads}))
        cpus = tuple(cpu for cpu in ordered if cpu in firsts)
        return Domain(nodes, cpus, tuple(ordered), sockets, hbm)

    parts: list[Domain] = []
    for node in host.numa:
        cpus = parse_cpus(node.cpus)
        if not cpus:
            continue
        hbm = tuple(other.node for other in host.numa if other.hbm and other.near == node.node)
        threads = [cpu for text in node.socket_cpus.values() for cpu in parse_cpus(text)]
        new = domain((node.node,), sorted({*cpus, *threads}), hbm)
        shared = next((one for one in parts if set(one.cpus) & set(cpus)), None)
        if shared:  # the same cores, as emulated nodes have
            both = sorted({*shared.threads, *new.threads})
            new = domain(shared.nodes + new.nodes, both, shared.hbm + hbm)
            parts[parts.index(shared)] = new
        else:
            parts.append(new)
    if not socket_of and host.sockets and len(parts) % host.sockets == 0:
        # facts of an older setup: nodes are numbered socket by socket on most machines
        each = len(parts) // host.sockets
        parts = [replace(one, sockets=(at // each,)) for at, one in enumerate(parts)]
    if not socket_of:
        return tuple(parts)
    by_socket = [
        domain(one.nodes, [cpu for cpu in one.threads if socket_of[cpu] == socket], one.hbm)
        for one in parts
        for socket in one.sockets
    ]
    real = min(len(one.cpus) for one in by_socket) >= COMMUNICATION_FROM
    return tuple(by_socket if real or any(len(one.sockets) == 1 for one in parts) else parts)


def worthwhile(host: HostFacts) -> tuple[tuple[Domain, ...], tuple[Domain, ...]]:
    """The domains that ranks use by default, and those that would slow them down."""
    everything = domains(host)
    most = max(len(domain.cpus) for domain in everything)
    used = tuple(one for one in everything if len(one.cpus) >= SMALL_NODE * most)
    return used, tuple(one for one in everything if one not in used)


def limited(host: HostFacts) -> bool:
    """Return whether a quota allows less than all hardware threads of a host."""
    return host.cpu_quota is not None and host.cpu_quota < host.threads


def even_counts(host: HostFacts) -> tuple[int, ...]:
    """Numbers of ranks with which each has equally many whole NUMA nodes, the highest first.

    No rank spans sockets if there are at least as many ranks as sockets: for two sockets with three
    nodes each, these are 6, 2 and 1. Each has COMMUNICATION_FROM cores of a quota, or is the only
    one.
    """
    used = worthwhile(host)[0]
    least = COMMUNICATION_FROM if limited(host) else 0
    return tuple(
        ranks
        for ranks in range(len(used), 0, -1)
        if ranks == 1
        or (len(used) % ranks == 0 and host.cores >= least * ranks and _apart(host, used, ranks))
    )


def least_cores(host: HostFacts, ranks: int) -> float:
    """The cores of the rank with the fewest."""
    if limited(host):
        return host.cores / ranks
    return min(len(cpus) for cpus, _ in _shares(host, worthwhile(host)[0], ranks))


def spanning(host: HostFacts, ranks: int) -> bool:
    """Return whether a rank has cores of several NUMA nodes without having all of them."""
    shares = _shares(host, worthwhile(host)[0], ranks)
    return any({*cpus} < {*_all_of(near)[0]} and len(near) > 1 for cpus, near in shares)


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
    shares = _floating(host, used, ranks) if floating else _shares(host, used, ranks)
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


def _shares(host: HostFacts, used: Sequence[Domain], ranks: int) -> list[_Share]:
    """Whole domains for each rank, or several ranks in each, or else equal pieces of all cores."""
    if len(used) % ranks == 0:
        return [_all_of(group) for group in _groups(host, used, ranks)]
    inside = ranks // len(used)
    if ranks % len(used) == 0 and all(len(domain.cpus) >= inside for domain in used):
        return [(cpus, (domain,)) for domain in used for cpus in _pieces(domain.cpus, inside)]
    sockets = sorted({domain.sockets for domain in used})
    on_each = [[domain for domain in used if domain.sockets == socket] for socket in sockets]
    inside, rest = divmod(ranks, len(sockets))
    if len(sockets) > 1 and not rest and all(len(_all_of(own)[0]) >= inside for own in on_each):
        return [share for own in on_each for share in _shares(host, own, inside)]
    everything, _ = _all_of([domain for own in on_each for domain in own])
    return [
        (cpus, tuple(domain for domain in used if set(domain.cpus) & set(cpus)))
        for cpus in _pieces(everything, ranks)
    ]


def _floating(host: HostFacts, used: Sequence[Domain], ranks: int) -> list[_Share]:
    """All hardware threads of whole domains, some for several ranks; or all for all."""
    groups: Sequence[Sequence[Domain]] = [used] * ranks
    if len(used) % ranks == 0:
        groups = _groups(host, used, ranks)
    elif ranks % len(used) == 0:
        groups = [[domain] for domain in used for _ in range(ranks // len(used))]
    return [
        (tuple(cpu for domain in group for cpu in domain.threads), tuple(group)) for group in groups
    ]


def _groups(host: HostFacts, used: Sequence[Domain], count: int) -> list[list[Domain]]:
    """So many groups of equally many domains, each of those nearest to its first one."""
    at = {node.node: index for index, node in enumerate(host.numa)}
    groups, left = [], list(used)
    while left:
        first = left[0]
        far = host.numa[at[first.nodes[0]]].distances
        group = sorted(
            left,
            key=lambda other: (
                not set(first.sockets) & set(other.sockets),
                far[at[other.nodes[0]]] if far else 0,
                other.sockets,
            ),
        )[: len(used) // count]
        groups.append([domain for domain in left if domain in group])
        left = [domain for domain in left if domain not in group]
    return groups


def _apart(host: HostFacts, used: Sequence[Domain], count: int) -> bool:
    """Whether no socket has domains of two groups, one of which spans sockets."""
    groups = [
        {socket for domain in group for socket in domain.sockets}
        for group in _groups(host, used, count)
    ]
    return all(
        len(own) == 1 or not any(own & other for other in groups if other is not own)
        for own in groups
    )


def _all_of(used: Sequence[Domain]) -> _Share:
    return tuple(cpu for domain in used for cpu in domain.cpus), tuple(used)


def _pieces(cpus: tuple[int, ...], count: int) -> Iterator[tuple[int, ...]]:
    size = len(cpus) // count
    for index in range(count):
        yield cpus[index * size : (index + 1) * size]


def _memory(host: HostFacts, near: Sequence[Domain]) -> tuple[int, ...]:
    """The nodes that memory is allocated on first: high-bandwidth memory if the cores have some.

    Those nearest to the cores where their own have no memory: preferring such a node is refused.
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
