"""How many ranks each host has, and why. Pure functions only."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ftcluster.cluster.facts import ClusterFacts, HostFacts
from ftcluster.errors import PlanError
from ftcluster.planning.batch import Batch
from ftcluster.planning.placement import domains, even_counts, worthwhile
from ftcluster_common.recipe import Recipe

# Ranks that span neighbouring nodes are chosen for the sake of balance only where all hosts
# together get this much faster by it, as remote memory costs them some of it.
WORTH_SPANNING = 1.1
ACROSS_SOCKETS = 0.7  # what a core is taken for whose rank has memory on another socket as well


@dataclass(frozen=True)
class Count:
    """The number of ranks of one host.

    Attributes:
        ranks: how many.
        why: the reason.
    """

    ranks: int
    why: str


@dataclass(frozen=True)
class Wish:
    """A number of ranks that somebody has given for every host.

    Attributes:
        ranks: how many.
        why: who says so.
    """

    ranks: int
    why: str


def wish_of(recipe: Recipe | None, ranks_per_host: int | None) -> Wish | None:
    """The user's word, above the recipe's; None where neither says anything."""
    if ranks_per_host is not None:
        return Wish(ranks_per_host, "as --ranks-per-host says")
    if recipe is not None and recipe.ranks_per_host is not None:
        return Wish(recipe.ranks_per_host, f"as recipe {recipe.name} says")
    return None


def choose_counts(facts: ClusterFacts, wish: Wish | None, batch: Batch) -> dict[str, Count]:
    """The number of ranks on each host, by its name.

    Without a wish one a NUMA node. Fewer, with several whole nodes each, where the batch has too
    few samples, a host too little memory, or its ranks would be much smaller than those of others
    and keep them waiting. One at least.

    Raises:
        PlanError: more are wished for than a host has cores; names each such host.
    """
    if wish:
        return _wished(facts, wish)
    possible = {host.name: even_counts(host) for host in facts.hosts}
    fitting = _for_the_batch(possible, batch)
    balanced = _balanced(facts, possible, fitting)
    in_memory = _in_memory(facts, possible, balanced, batch)
    found = {}
    for host in facts.hosts:
        ranks = in_memory[host.name]
        if ranks < balanced[host.name]:
            why = "its memory is too small for more ranks"
        elif ranks < fitting[host.name]:
            why = (
                "ranks have equal shares of a batch, and smaller ones would keep those of the "
                "other hosts waiting"
            )
        else:
            why = f"a batch of {batch.samples} samples is too small for a rank on every node"
        found[host.name] = Count(ranks, _reason(host, ranks, possible[host.name][0], why))
    return found


def _wished(facts: ClusterFacts, wish: Wish) -> dict[str, Count]:
    short = [
        f"{host.name} has {host.cores} core{'s' * (host.cores != 1)} for {wish.ranks} ranks"
        for host in facts.hosts
        if host.cores < wish.ranks
    ]
    if short:
        raise PlanError(
            "a rank needs a core of its own\n  " + "\n  ".join(short),
            f"take fewer: --ranks-per-host {min(host.cores for host in facts.hosts)}",
        )
    found = {}
    for host in facts.hosts:
        nodes, good = len(worthwhile(host)[0]), even_counts(host)
        why = wish.why
        if nodes % wish.ranks and wish.ranks % nodes:
            would = f"{', '.join(map(str, good[:-1]))} or {good[-1]}"
            why += f"; some ranks have cores of two NUMA nodes, with {would} none would"
        found[host.name] = Count(wish.ranks, why)
    return found


def _for_the_batch(possible: Mapping[str, tuple[int, ...]], batch: Batch) -> dict[str, int]:
    """The most ranks that each host can have so that all have a sample; one each if none do."""
    most = max(counts[0] for counts in possible.values())
    found: dict[str, int] = {}
    for cap in range(most, 0, -1):
        found = {name: next(n for n in counts if n <= cap) for name, counts in possible.items()}
        if batch.samples is None or sum(found.values()) <= batch.samples:
            break
    return found


def _balanced(
    facts: ClusterFacts, possible: Mapping[str, tuple[int, ...]], most: dict[str, int]
) -> dict[str, int]:
    """Counts with which all hosts together are fastest, as their smallest rank decides the pace."""

    def cores_a_rank(host: HostFacts, ranks: int) -> float:
        return host.cores / ranks * (ACROSS_SOCKETS if ranks < host.sockets else 1)

    def speed(counts: Mapping[str, int]) -> float:
        slowest = min(cores_a_rank(host, counts[host.name]) for host in facts.hosts)
        return sum(counts.values()) * slowest

    def with_ranks_of(cores: float) -> dict[str, int]:
        """As many ranks as have so many cores; one of a host that has fewer."""
        return {
            host.name: next(
                (
                    count
                    for count in possible[host.name]
                    if count <= most[host.name] and cores_a_rank(host, count) >= cores
                ),
                1,
            )
            for host in facts.hosts
        }

    levels = {cores_a_rank(host, n) for host in facts.hosts for n in possible[host.name]}
    fastest = max(map(with_ranks_of, sorted(levels)), key=speed)
    return fastest if speed(fastest) >= WORTH_SPANNING * speed(most) else most


def _in_memory(
    facts: ClusterFacts, possible: Mapping[str, tuple[int, ...]], most: dict[str, int], batch: Batch
) -> dict[str, int]:
    """The most ranks of each host that its memory has room for, as far as that is known."""
    found = most
    before: dict[str, int] = {}
    while found != before:  # fewer ranks have larger shares
        before, world = found, sum(found.values())
        found = {
            host.name: next(
                (
                    count
                    for count in possible[host.name]
                    if count <= before[host.name] and batch.fits(host, count, world)
                ),
                1,
            )
            for host in facts.hosts
        }
    return found


def _reason(host: HostFacts, ranks: int, most: int, why_fewer: str) -> str:
    """Why a host has this number of ranks, `most` being one a NUMA node."""
    if host.cores == 1:
        return "it has one core"
    words = "one a NUMA node: a rank that spans two pays for remote memory every step"
    if ranks < most:
        words = f"{most // ranks} NUMA nodes each: {why_fewer}"
    return "; ".join([words, *_left_out(host)])


def _left_out(host: HostFacts) -> Iterator[str]:
    """What to know of the nodes that no rank is on."""
    _, unused = worthwhile(host)
    nodes = [str(node) for domain in unused for node in domain.nodes]
    if not nodes:
        return
    if sum(len(domain.cpus) for domain in domains(host)) > host.cores:
        yield "a CPU quota that small has no need of the other nodes"
    else:
        has = "has" if len(nodes) == 1 else "have"
        plural = "s" * (len(nodes) > 1)
        yield f"node{plural} {', '.join(nodes)} with so few cores would hold it up and {has} none"
