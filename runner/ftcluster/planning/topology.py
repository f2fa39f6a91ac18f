"""Group a host's cores by their local memory, and select the ranks' cores. Pure functions only."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ftcluster.cluster.facts import HostFacts
from ftcluster_common.protocol.cpu_list import parse_cpus

# a node is not used if it has less than this fraction of the cores of the largest node, because its
# rank would slow down all ranks
SMALL_NODE = 0.5
LEAST_CORES = 8  # minimum cores of a rank on one socket of a node, or on a node's part of a quota


@dataclass(frozen=True)
class Domain:
    """A group of cores with the same local memory.

    Attributes:
        nodes: NUMA node numbers; several if the kernel emulates several nodes on the same cores.
        cpus: CPU numbers of the cores' first hardware threads, grouped by socket.
        threads: CPU numbers of the cores' usable hardware threads, as far as the facts list them.
        sockets: socket numbers of the cores.
        hbm: NUMA node numbers of the high-bandwidth memory nearest to these cores.
    """

    nodes: tuple[int, ...]
    cpus: tuple[int, ...]
    threads: tuple[int, ...]
    sockets: tuple[int, ...]
    hbm: tuple[int, ...]


@dataclass(frozen=True)
class Topology:
    """The cores of a host, grouped by local memory.

    Attributes:
        host: the facts of the host.
        domains: all domains, in the order of their NUMA nodes.
        used: the domains that ranks use by default.
        limited: True if a quota allows less CPU time than all hardware threads provide.
        even_counts: numbers of ranks with which all ranks have the same number of whole domains,
            the largest first. No rank spans sockets, unless there are fewer ranks than sockets. For
            two sockets with three nodes each, the numbers are 6, 2 and 1. Under a quota, each rank
            has at least LEAST_CORES cores of the quota, unless it is the only rank.
    """

    host: HostFacts
    domains: tuple[Domain, ...]
    used: tuple[Domain, ...]
    limited: bool
    even_counts: tuple[int, ...]

    @classmethod
    def of(cls, host: HostFacts) -> "Topology":
        """Return the topology of a host."""
        domains = _domains(host)
        limited = host.cpu_quota is not None and host.cpu_quota < host.threads
        most = max(len(domain.cpus) for domain in domains)
        used = tuple(domain for domain in domains if len(domain.cpus) >= SMALL_NODE * most)
        least = LEAST_CORES if limited else 0
        counts = tuple(
            ranks
            for ranks in range(len(used), 0, -1)
            if ranks == 1
            or (
                len(used) % ranks == 0
                and host.cores >= least * ranks
                and _apart(near_groups(host, used, ranks))
            )
        )
        return cls(host, domains, used, limited, counts)

    @property
    def unused(self) -> tuple[Domain, ...]:
        """The domains that ranks do not use by default, because they are too small."""
        return tuple(domain for domain in self.domains if domain not in self.used)

    def with_cores_for(self, ranks: int) -> tuple[Domain, ...]:
        """Return the domains for `ranks` ranks: `used`, or all if `used` has too few cores."""
        return self.used if ranks <= _cores(self.used) else self.domains


def _cores(domains: Sequence[Domain]) -> int:
    return sum(len(domain.cpus) for domain in domains)


def _domains(host: HostFacts) -> tuple[Domain, ...]:
    """Return the cores of a host by their local memory, in the order of the NUMA nodes.

    A node with cores on several sockets is divided by socket in two cases. First, all other nodes
    are on one socket each; then the node also has the cores of a socket without memory. Second,
    the node has at least LEAST_CORES cores on each socket; a hypervisor's sockets often have fewer.
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
        shared = next((part for part in parts if set(part.cpus) & set(cpus)), None)
        if shared:  # emulated nodes share their cores
            both = sorted({*shared.threads, *new.threads})
            new = domain(shared.nodes + new.nodes, both, shared.hbm + hbm)
            parts[parts.index(shared)] = new
        else:
            parts.append(new)
    if not socket_of and host.sockets and len(parts) % host.sockets == 0:
        # facts of an older setup lack the sockets; most machines number nodes socket by socket
        each = len(parts) // host.sockets
        parts = [replace(part, sockets=(at // each,)) for at, part in enumerate(parts)]
    if not socket_of:
        return tuple(parts)
    by_socket = [
        domain(part.nodes, [cpu for cpu in part.threads if socket_of[cpu] == socket], part.hbm)
        for part in parts
        for socket in part.sockets
    ]
    real = min(len(part.cpus) for part in by_socket) >= LEAST_CORES
    return tuple(by_socket if real or any(len(part.sockets) == 1 for part in parts) else parts)


def near_groups(host: HostFacts, used: Sequence[Domain], count: int) -> list[list[Domain]]:
    """Divide domains into `count` groups of equal size.

    Each group consists of a first domain and the domains nearest to it.
    """
    at = {node.node: index for index, node in enumerate(host.numa)}
    groups, remaining = [], list(used)
    while remaining:
        first = remaining[0]
        far = host.numa[at[first.nodes[0]]].distances
        group = sorted(
            remaining,
            key=lambda other: (
                not set(first.sockets) & set(other.sockets),
                far[at[other.nodes[0]]] if far else 0,
                other.sockets,
            ),
        )[: len(used) // count]
        groups.append([domain for domain in remaining if domain in group])
        remaining = [domain for domain in remaining if domain not in group]
    return groups


def _apart(groups: Sequence[Sequence[Domain]]) -> bool:
    """Return True if no group that spans sockets shares a socket with another group."""
    sockets = [{socket for domain in group for socket in domain.sockets} for group in groups]
    return all(
        len(group) == 1 or not any(group & other for other in sockets if other is not group)
        for group in sockets
    )
