"""The cores of a host by their local memory, and those that ranks use. Pure functions only."""

from collections.abc import Sequence
from dataclasses import dataclass

from ftcluster.cluster.facts import HostFacts
from ftcluster_common.cpu_list import parse_cpus

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
class Topology:
    """The cores of a host.

    Attributes:
        domains: all of them, in the nodes' order.
        used: those that ranks use by default; with a quota the largest, as many as have its cores.
        limited: whether a quota allows less than all cores.
        even_counts: numbers of ranks with which each has equally many whole NUMA nodes, the highest
            first. No rank spans sockets if there are at least as many ranks as sockets: for two
            sockets with three nodes each, these are 6, 2 and 1.
    """

    host: HostFacts
    domains: tuple[Domain, ...]
    used: tuple[Domain, ...]
    limited: bool
    even_counts: tuple[int, ...]

    @classmethod
    def of(cls, host: HostFacts) -> "Topology":
        """The topology of a host."""
        domains = _domains(host)
        limited = host.cpu_quota is not None and host.cpu_quota < _cores(domains)
        most = max(len(domain.cpus) for domain in domains)
        used = tuple(one for one in domains if len(one.cpus) >= SMALL_NODE * most)
        if limited:
            by_size = sorted(used, key=lambda one: -len(one.cpus))
            while len(by_size) > 1 and _cores(by_size[:-1]) >= host.cores:
                by_size.pop()
            used = tuple(one for one in used if one in by_size)
        return cls(host, domains, used, limited, _even_counts(len(used), host.sockets))

    @property
    def unused(self) -> tuple[Domain, ...]:
        """Those that would slow ranks down."""
        return tuple(one for one in self.domains if one not in self.used)

    def with_cores_for(self, ranks: int) -> tuple[Domain, ...]:
        """Those that are used by so many ranks: all where the used ones have too few cores."""
        return self.used if ranks <= _cores(self.used) else self.domains


def _cores(domains: Sequence[Domain]) -> int:
    return sum(len(domain.cpus) for domain in domains)


def _even_counts(nodes: int, sockets: int) -> tuple[int, ...]:
    if not sockets or nodes % sockets:
        sockets = 1
    return tuple(
        ranks
        for ranks in range(nodes, 0, -1)
        if nodes % ranks == 0 and (ranks % sockets == 0 or sockets % ranks == 0)
    )


def _domains(host: HostFacts) -> tuple[Domain, ...]:
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
