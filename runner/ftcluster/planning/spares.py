"""Plan the hosts without ranks: spares and drained hosts. A spare may replace a lost host.

Pure functions only.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ftcluster.cluster.absent import AbsentHost
from ftcluster.cluster.facts import ClusterFacts, HostFacts
from ftcluster.cluster.record import Drained
from ftcluster.errors import PlanError, UsageError
from ftcluster.planning.memory import ModelSize
from ftcluster.planning.network import ASKED
from ftcluster.planning.plan import Decision, LaunchPlan, plan
from ftcluster.planning.tuned import UNTUNED, Tuned
from ftcluster.stacks.catalog import Stack
from ftcluster.text.host_names import short_names
from ftcluster.text.plural import counted
from ftcluster_common.recipe import Recipe

BACK = "to use a drained host again: ftcluster hosts return HOST"
# attributes of a plan that all ranks share, and the settings that determine them
COMMON = {
    "precision": "precision in the recipe",
    "ipex": "training.use_ipex in the recipe",
    "backend": "training.ddp_backend in the recipe",
    "shard_optimizer": "training.shard_optimizer in the recipe",
    "provider": f"{ASKED} in the inventory",
}


def next_hosts(
    facts: ClusterFacts, nodes: int | None, count: int, absent: Sequence[AbsentHost] = ()
) -> tuple[HostFacts, ...]:
    """Return the spare hosts: the `count` hosts that follow the first `nodes` hosts.

    Args:
        facts: hosts that the run may use, the head first.
        nodes: number of hosts with ranks; None for all hosts, which leaves no spares.
        count: number of spare hosts.
        absent: the cluster's other hosts.

    Raises:
        UsageError: there are too few hosts (the message names absent hosts); or only the head runs
            ranks, and no spare can replace the head.
    """
    nodes = nodes or len(facts.hosts)
    remaining = facts.hosts[nodes:]
    if count > len(remaining):
        problem = (
            f"--spares {count}, but the run has ranks on {nodes} of "
            f"{counted(len(facts.hosts), 'host')}, which leaves {len(remaining)}"
        )
        raise UsageError(
            "; ".join([problem, *(f"{host.name} {host.why}" for host in absent)]),
            "; ".join([*(host.remedy for host in absent), "use fewer spares, or fewer --nodes"]),
        )
    if count and nodes == 1:
        raise UsageError("--spares needs --nodes 2 or more, because no spare can replace the head")
    return remaining[:count]


def plan_with_spares(
    facts: ClusterFacts,
    spares: tuple[HostFacts, ...],
    recipe: Recipe | None,
    stacks: Mapping[str, Stack],
    ranks_per_host: int | None = None,
    model: ModelSize | None = None,
    trains: bool = True,
    tuned: Tuned = UNTUNED,
    *,
    drained: Mapping[str, Drained],
) -> LaunchPlan:
    """Plan a launch, including the hosts that may replace a lost host.

    Each spare is planned as a replacement of the last host, with the same number of ranks.

    Args:
        facts: the hosts with ranks. The first host is the head.
        spares: the spare hosts.
        recipe, stacks, ranks_per_host, model, trains, tuned: see `plan`.
        drained: drained hosts by name; they have no ranks.

    Raises:
        PlanError: there is no plan, see `plan`; or a spare would change the run's settings.
    """
    decided = plan(facts, recipe, stacks, ranks_per_host, model, trains, tuned)
    without_ranks = [*_of_drained(drained)]
    if not spares:
        return replace(decided, decisions=(*decided.decisions, *without_ranks))
    counts = {host.ranks for host in decided.hosts}
    ranks = counts.pop() if len(counts) == 1 else ranks_per_host
    planned = []
    for spare in spares:
        hosts = replace(facts, hosts=(*facts.hosts[:-1], spare))
        other = plan(hosts, recipe, stacks, ranks, model, trains, tuned)
        for what, place in COMMON.items():
            value, new = getattr(decided, what), getattr(other, what)
            if value != new:
                raise PlanError(
                    f"{spare.name} cannot be a spare: {what} is {value}, but {new} with that host",
                    f"set {place}, or use fewer spares",
                )
        planned.append(other.hosts[-1])
    names = short_names([spare.name for spare in spares])
    why = "prepared, but without ranks; a restart uses them in place of lost hosts"
    decisions = (*decided.decisions, Decision("spares", names, why), *without_ranks)
    return replace(decided, decisions=decisions, spares=tuple(planned))


def _of_drained(drained: Mapping[str, Drained]) -> Iterator[Decision]:
    """Yield a decision for each drained host, with the reason why it has no ranks."""
    for name, drain in drained.items():
        reason = f"{drain.why}, since {drain.since}; to use it again: ftcluster hosts return {name}"
        yield Decision("drained", name, reason)
