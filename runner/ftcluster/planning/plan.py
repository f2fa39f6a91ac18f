"""From the facts of a cluster and a recipe to one launch. Pure functions only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ftcluster.cluster.facts import ClusterFacts
from ftcluster.errors import PlanError
from ftcluster.planning import explain
from ftcluster.planning.backends import (
    WORKERS,
    check_quantization,
    choose_backend,
    choose_ipex,
    stack_of,
)
from ftcluster.planning.batch import StepWorkload
from ftcluster.planning.host_checks import (
    check_addresses,
    check_allocator,
    choose_precision,
)
from ftcluster.planning.memory import ModelSize
from ftcluster.planning.network import choose_network, network_mbits
from ftcluster.planning.placement import RankPlan, lay_out, rank_cores
from ftcluster.planning.rank_counts import Count, choose_counts, requested_count
from ftcluster.planning.sharding import choose_sharding
from ftcluster.planning.topology import Topology
from ftcluster.planning.tuned import UNTUNED, Tuned
from ftcluster.stacks.catalog import Stack
from ftcluster.text.host_names import short_names
from ftcluster.text.plural import counted
from ftcluster_common.protocol.launch import CCL
from ftcluster_common.protocol.network import HostNetwork
from ftcluster_common.recipe import Recipe

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Decision:
    """One choice of the plan and why it was made.

    Attributes:
        what: its subject, e.g. "precision".
        value: what was chosen, as text.
        hosts: the hosts that it is about; none: the whole launch.
    """

    what: str
    value: str
    why: str
    hosts: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        """What it is about, with the hosts: "ranks on node1-node7"."""
        return f"{self.what} on {short_names(self.hosts)}" if self.hosts else self.what


@dataclass(frozen=True)
class HostPlan:
    """The ranks of one host.

    Attributes:
        name: in the inventory.
        address: for mpirun and the ranks.
        interface: its network interface with that address, or "".
        network: what it has for MPI.
        placement: where each of its ranks is, by local rank.
        allocator: the allocator's library for LD_PRELOAD, or "".
        openmp: Intel's OpenMP library for LD_PRELOAD, or "".
    """

    name: str
    address: str
    interface: str
    placement: tuple[RankPlan, ...]
    allocator: str
    openmp: str
    network: HostNetwork

    @property
    def ranks(self) -> int:
        """The number of its ranks."""
        return len(self.placement)

    @property
    def threads_per_rank(self) -> int:
        """OpenMP threads of the rank with the fewest."""
        return min(rank.threads for rank in self.placement)

    @property
    def preload(self) -> tuple[str, ...]:
        """Libraries for LD_PRELOAD."""
        return tuple(library for library in (self.allocator, self.openmp) if library)


@dataclass(frozen=True)
class LaunchPlan:
    """All that a launch is made of: hosts, ranks and settings, each with its reason.

    Attributes:
        hosts: the head first, which runs rank 0.
        prefix: the folder of the cluster on the head.
        precision: bf16 or fp32.
        rank_user: the account that ranks run as, or "" for the login user.
        provider: libfabric's, for MPI between hosts; "" for one host.
        shard_optimizer: whether each rank has only a part of the optimizer.
        spares: hosts that may take the place of a lost one.
    """

    hosts: tuple[HostPlan, ...]
    prefix: str
    backend: str
    precision: str
    ipex: bool
    rank_user: str
    decisions: tuple[Decision, ...]
    provider: str = ""
    shard_optimizer: bool = False
    spares: tuple[HostPlan, ...] = ()

    @property
    def prepared(self) -> tuple[HostPlan, ...]:
        """All hosts that the run is prepared on."""
        return self.hosts + self.spares

    def with_decision(self, decision: Decision) -> "LaunchPlan":
        """Return the plan with one more decision."""
        return replace(self, decisions=(*self.decisions, decision))

    @property
    def world_size(self) -> int:
        """Ranks on all hosts together."""
        return sum(host.ranks for host in self.hosts)

    @property
    def interface(self) -> str:
        """The head's network interface with that address, or ""."""
        return self.hosts[0].interface


class Problems:
    """Errors of several checks, each a `with` block, which ends at its first one."""

    def __init__(self) -> None:
        self._errors: list[PlanError] = []

    def __bool__(self) -> bool:
        return bool(self._errors)

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if isinstance(error, PlanError):
            self._errors.append(error)
            return True
        return False

    def together(self) -> PlanError:
        """One error with all problems."""
        if len(self._errors) == 1:
            return self._errors[0]
        text = "\n".join(map(str, self._errors)).replace("\n", "\n  ")
        return PlanError(f"{len(self._errors)} problems prevent the launch\n  {text}")


def first_hosts(facts: ClusterFacts, count: int | None) -> ClusterFacts:
    """The head and the hosts after it, `count` in all; None for all hosts.

    Raises:
        PlanError: there are fewer.
    """
    if count and count > len(facts.hosts):
        there = ", ".join(host.name for host in facts.hosts)
        raise PlanError(
            f"--nodes {count}, but the cluster has {counted(len(facts.hosts), 'host')}: {there}",
            "use fewer, or add hosts with ftcluster setup",
        )
    return replace(facts, hosts=facts.hosts[:count])


def plan(
    facts: ClusterFacts,
    recipe: Recipe | None,
    stacks: Mapping[str, Stack],
    ranks_per_host: int | None = None,
    model: ModelSize | None = None,
    trains: bool = True,
    tuned: Tuned = UNTUNED,
) -> LaunchPlan:
    """Decide who runs where.

    Args:
        facts: the hosts; the first one is the head.
        recipe: None for a user's own script, whose batch and memory are not known.
        tuned: which of the recipe's fields `ftcluster tune` has set.
        ranks_per_host: overrides the recipe.
        model: its size, if it is known; the plan then makes sure that it fits.
        trains: whether the recipe's batch is computed; if not, any number of ranks will do.

    Raises:
        PlanError: hosts have different stacks or network providers, or addresses that others
            cannot use; a host has fewer cores than ranks, or too little memory; the batch has
            fewer samples than ranks; the stack or a host does not have what the recipe requires.
            Names all problems with their hosts.
    """
    facts = _by_loopback(facts)
    topologies = [Topology.of(host) for host in facts.hosts]
    stack = ipex = sharding = network = backend = None
    problems = Problems()
    with problems:
        check_addresses(facts)
    with problems:
        check_allocator(facts, recipe)
    precision, precision_why = choose_precision(recipe, facts.hosts)
    with problems:
        stack = stack_of(facts, stacks)
        ipex = choose_ipex(recipe, facts.hosts, stack, stacks)
    with problems:
        if stack and recipe and trains:
            check_quantization(recipe, stack, stacks)
    mbits = network_mbits(facts)
    with problems:
        network = choose_network(facts.hosts) if len(facts.hosts) > 1 else None
    batch = StepWorkload(precision=precision)
    if recipe and trains:
        batch = StepWorkload.of(recipe, precision, model, ipex=bool(ipex and ipex[0]))
    requested = requested_count(recipe, ranks_per_host, tuned)
    chosen: dict[str, Count] = {}
    with problems:
        whole, sharded = (
            choose_counts(topologies, requested, replace(batch, sharded=shards))
            for shards in (False, True)
        )
        chosen = whole
        sharding = choose_sharding(recipe, facts, batch, whole, sharded, mbits, tuned)
        if sharding[0]:
            chosen, batch = sharded, replace(batch, sharded=True)
    counts = {name: count.ranks for name, count in chosen.items()}
    world = sum(counts.values())
    if chosen:
        with problems:
            batch.check_samples(world, len(facts.hosts))
        with problems:
            batch.check_memory(facts, counts)
        with problems:
            if stack:
                fewest = min(rank_cores(one, counts[one.host.name]) for one in topologies)
                measured = facts.known_all_reduce
                sent = batch.sent_at_once(recipe.training.ddp_bucket_cap_mb if recipe else None)
                backend = choose_backend(
                    recipe, world, fewest, stack, stacks, measured, sent, tuned
                )
    if problems or not ipex or not backend or not sharding:
        raise problems.together()

    workers = WORKERS if backend[0] == CCL else 0
    kept_cores = recipe.communication_cores if recipe else None
    samples = (batch.share(rank, world) for rank in range(world))
    decisions: list[Decision] = []
    hosts: list[HostPlan] = []
    for topology in topologies:
        host = topology.host
        count = chosen[host.name]
        layout = lay_out(topology, count.ranks, world > 1, workers, kept_cores)
        preloaded = "" if recipe and recipe.allocator == "libc" else host.tcmalloc
        of_host = {
            "ranks": (str(count.ranks), count.why),
            "threads per rank": explain.threads(
                host, layout, world, workers, _asked(recipe, "communication_cores", None, tuned)
            ),
            "cores for the system": explain.system(host, layout),
            "memory": explain.memory(host, layout),
            "allocator": explain.allocator(
                host, preloaded, _asked(recipe, "allocator", "auto", tuned)
            ),
            "OpenMP": explain.openmp(host),
            "network interface": explain.interface(host, len(facts.hosts)),
        }
        decisions += [Decision(what, *reason, (host.name,)) for what, reason in of_host.items()]
        hosts.append(
            HostPlan(
                name=host.name,
                address=host.network_address,
                interface=host.network_interface,
                placement=tuple(replace(rank, samples=next(samples)) for rank in layout.ranks),
                allocator=preloaded,
                openmp=host.openmp,
                network=host.network,
            )
        )
    of_all = {
        "precision": (precision, precision_why),
        "ipex": ("on" if ipex[0] else "off", ipex[1]),
        "backend": backend,
    }
    if network:
        of_all["network provider"] = explain.provider(network, backend[0])
    if batch.samples is not None:
        spread = f"sharded over {world} ranks" if sharding[0] else "whole on each rank"
        of_all["optimizer"] = (spread, sharding[1])
        if recipe and batch.local:
            of_all["synchronization"] = explain.synchronization(recipe, len(facts.hosts), world)
        of_all["batch"] = batch.decision(batch.samples, world)
        of_all["memory per rank"] = batch.memory_decision(world)
    of_all["rendezvous"] = explain.rendezvous(facts)
    threads = [(host.name, [rank.threads for rank in host.placement]) for host in hosts]
    if pace := explain.pace(threads):
        of_all["pace"] = pace
    decisions += [Decision(what, *reason) for what, reason in of_all.items()]
    return LaunchPlan(
        hosts=tuple(hosts),
        prefix=facts.head.prefix,
        backend=backend[0],
        precision=precision,
        ipex=ipex[0],
        shard_optimizer=sharding[0],
        rank_user=facts.head.rank_user,
        decisions=_grouped(decisions),
        provider=network[0] if network else "",
    )


def _by_loopback(facts: ClusterFacts) -> ClusterFacts:
    """Return the facts; those of a single host with the loopback address for the rendezvous."""
    if len(facts.hosts) > 1:
        return facts
    head = replace(facts.head, network_address=LOOPBACK, network_interface="lo")
    return replace(facts, hosts=(head,))


def _asked(recipe: Recipe | None, name: str, default: object, tuned: Tuned) -> str:
    """Why a field of the recipe has another value than its default; "" where it does not."""
    if recipe is None or getattr(recipe, name) == default:
        return ""
    return tuned.reason(recipe, name)


def _grouped(decisions: Sequence[Decision]) -> tuple[Decision, ...]:
    """Decisions by their subject; one that is the same for several hosts is kept once."""
    hosts: dict[tuple[str, str, str], list[str]] = {}
    for decision in decisions:
        hosts.setdefault((decision.what, decision.value, decision.why), []).extend(decision.hosts)
    order = list(dict.fromkeys(decision.what for decision in decisions))
    merged = [Decision(*made, tuple(names)) for made, names in hosts.items()]
    return tuple(sorted(merged, key=lambda decision: order.index(decision.what)))
