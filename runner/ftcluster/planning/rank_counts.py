"""Choose the number of ranks of each host. Pure functions only."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ftcluster.errors import PlanError
from ftcluster.planning.batch import StepWorkload
from ftcluster.planning.placement import rank_cores, spanning
from ftcluster.planning.topology import Topology
from ftcluster.planning.tuned import UNTUNED, Tuned
from ftcluster.text.plural import counted
from ftcluster_common.recipe import Recipe

# If ranks span neighbouring nodes, the ranks of different hosts are more equal in size, but remote
# memory costs part of the gain. Ranks span nodes only if the whole cluster is estimated to become
# faster by at least this factor.
WORTH_SPANNING = 1.1
ACROSS_SOCKETS = 0.7  # relative speed of a core whose rank also has memory on another socket


@dataclass(frozen=True)
class Count:
    """The number of ranks of one host.

    Attributes:
        ranks: number of ranks.
        why: the reason for this number.
        at_most: True if the number is an upper limit, so a host with fewer cores gets fewer ranks.
    """

    ranks: int
    why: str
    at_most: bool = False


def requested_count(
    recipe: Recipe | None, ranks_per_host: int | None, tuned: Tuned = UNTUNED
) -> Count | None:
    """Return the requested number of ranks per host; None if no number is requested.

    The command line overrides the recipe.
    """
    if ranks_per_host is not None:
        return Count(ranks_per_host, "set with --ranks-per-host")
    if recipe is not None and recipe.ranks_per_host is not None:
        reason = tuned.reason(recipe, "ranks_per_host")
        return Count(recipe.ranks_per_host, reason, at_most=True)
    return None


def choose_counts(
    hosts: Sequence[Topology], requested: Count | None, batch: StepWorkload
) -> dict[str, Count]:
    """Return the number of ranks on each host, by the host's name.

    The default is one rank for each NUMA node. A host gets fewer ranks, each on several whole
    nodes, in three cases: the batch has too few samples, the host has too little memory, or ranks
    of other hosts would wait for much smaller ranks. Each host gets at least one rank.

    Raises:
        PlanError: the command line requests more ranks than a host has cores; the message lists
            these hosts.
    """
    if requested:
        return _requested(hosts, requested)
    fitting = _for_the_batch(hosts, batch)
    balanced = _balanced(hosts, fitting)
    in_memory = _in_memory(hosts, balanced, batch)
    counts = {}
    for topology in hosts:
        name = topology.host.name
        ranks = in_memory[name]
        if ranks < balanced[name]:
            why = "the host's memory is too small for more ranks"
        elif ranks < fitting[name]:
            why = "ranks get equal parts of a batch, so ranks with more cores would wait"
        else:
            why = f"a batch of {batch.samples} samples is too small for more ranks"
        counts[name] = Count(ranks, _reason(topology, ranks, why))
    return counts


def _requested(hosts: Sequence[Topology], requested: Count) -> dict[str, Count]:
    facts = [topology.host for topology in hosts]
    short = [
        f"{host.name} has {counted(host.cores, 'core')} for {requested.ranks} ranks"
        for host in facts
        if host.cores < requested.ranks and not requested.at_most
    ]
    if short:
        raise PlanError(
            "each rank needs its own core\n  " + "\n  ".join(short),
            f"use fewer ranks: --ranks-per-host {min(host.cores for host in facts)}",
        )
    counts = {}
    for topology in hosts:
        good, cores = topology.even_counts, topology.host.cores
        ranks, why = min(requested.ranks, cores), requested.why
        if ranks < requested.ranks:
            why = f"{requested.ranks} ranks are {why}, but each rank needs its own core"
        if ranks not in good and not topology.limited and spanning(topology, ranks):
            would = f"{', '.join(map(str, good[:-1]))} or {good[-1]}"
            why += f"; some ranks have cores of two NUMA nodes; {would} ranks would avoid this"
        counts[topology.host.name] = Count(ranks, why)
    return counts


def _for_the_batch(hosts: Sequence[Topology], batch: StepWorkload) -> dict[str, int]:
    """Return the largest numbers of ranks with which each rank gets a sample, by host name.

    If the batch is too small for that, each host gets its smallest possible number of ranks.
    """
    possible = {topology.host.name: topology.even_counts for topology in hosts}
    most = max(counts[0] for counts in possible.values())
    fitting: dict[str, int] = {}
    for cap in range(most, 0, -1):
        fitting = {name: next(n for n in counts if n <= cap) for name, counts in possible.items()}
        if batch.is_enough(sum(fitting.values())):
            break
    return fitting


def _balanced(hosts: Sequence[Topology], most: dict[str, int]) -> dict[str, int]:
    """Return the numbers of ranks with the highest total speed, by host name.

    All ranks wait for the rank with the fewest cores.
    """

    def cores_a_rank(topology: Topology, ranks: int) -> float:
        return rank_cores(topology, ranks) * (
            ACROSS_SOCKETS if ranks < topology.host.sockets else 1
        )

    def speed(counts: Mapping[str, int]) -> float:
        slowest = min(cores_a_rank(topology, counts[topology.host.name]) for topology in hosts)
        return sum(counts.values()) * slowest

    def with_ranks_of(cores: float) -> dict[str, int]:
        return _most(hosts, most, lambda topology, n: cores_a_rank(topology, n) >= cores)

    levels = {cores_a_rank(topology, n) for topology in hosts for n in topology.even_counts}
    fastest = max(map(with_ranks_of, sorted(levels)), key=speed)
    return fastest if speed(fastest) >= WORTH_SPANNING * speed(most) else most


def _in_memory(
    hosts: Sequence[Topology], most: dict[str, int], batch: StepWorkload
) -> dict[str, int]:
    """Return the largest numbers of ranks that fit into each host's memory, by host name.

    If the memory of a rank is not known, `most` is returned.
    """
    world = 0

    def fits(topology: Topology, ranks: int) -> bool:
        return batch.fits(topology.host, ranks, world)

    fitting = most
    before: dict[str, int] = {}
    # repeat, because with fewer ranks, each rank has a larger part of the batch
    while fitting != before:
        before, world = fitting, sum(fitting.values())
        fitting = _most(hosts, before, fits)
    return fitting


def _most(
    hosts: Sequence[Topology], most: Mapping[str, int], good: Callable[[Topology, int], bool]
) -> dict[str, int]:
    """Return the largest of each host's `even_counts` that is at most `most` and passes `good`.

    If there is no such number, the host gets one rank.
    """
    highest = {}
    for topology in hosts:
        name = topology.host.name
        counts = (n for n in topology.even_counts if n <= most[name] and good(topology, n))
        highest[name] = next(counts, 1)
    return highest


def _reason(topology: Topology, ranks: int, why_fewer: str) -> str:
    """Return the reason why a host has this number of ranks."""
    used, unused = topology.used, topology.unused
    if topology.host.cores == 1:
        limited = "the host's CPU quota is too small for two ranks"
        return limited if topology.limited else "the host has one core"
    if ranks < topology.even_counts[0]:
        text = f"{len(used) // ranks} NUMA nodes each: {why_fewer}"
    elif ranks < len(used):
        text = f"the CPU quota is too small for a rank on each of the {len(used)} NUMA nodes"
    elif len({node for domain in used for node in domain.nodes}) < len(used):
        text = "one per NUMA node and socket, because remote memory is slower"
    else:
        text = "one per NUMA node, because remote memory is slower"
    if unused:
        nodes = sorted({node for domain in unused for node in domain.nodes})
        text += f"; none on node{'s' * (len(nodes) > 1)} {', '.join(map(str, nodes))}, whose few "
        text += "cores would slow down the other ranks"
    return text
