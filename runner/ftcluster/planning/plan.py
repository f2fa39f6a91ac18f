"""Plan a launch from the facts of a cluster and a recipe. Pure functions only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ftcluster.cluster.absent import AbsentHost
from ftcluster.cluster.facts import ClusterFacts, HostFacts
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
from ftcluster.planning.placement import Layout, RankPlan, lay_out, rank_cores
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
    """A decision of the plan and its reason.

    Attributes:
        what: subject of the decision, e.g. "precision".
        value: the decision, as text.
        why: the reason for the decision.
        hosts: names of the hosts that the decision applies to; empty for the whole launch.
    """

    what: str
    value: str
    why: str
    hosts: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        """The subject of the decision, with its hosts: "ranks on node1-node7"."""
        return f"{self.what} on {short_names(self.hosts)}" if self.hosts else self.what


@dataclass(frozen=True)
class HostPlan:
    """The ranks of one host.

    Attributes:
        name: the host's name in the inventory.
        address: the host's address for mpirun and the ranks.
        interface: the network interface with that address; "" if it is not known.
        network: the host's network interfaces and devices for MPI.
        placement: the plan of each rank, in the order of local ranks.
        allocator: path of the allocator's library for LD_PRELOAD; "" for none.
        openmp: path of Intel's OpenMP library for LD_PRELOAD; "" for none.
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
        """The number of ranks on the host."""
        return len(self.placement)

    @property
    def threads_per_rank(self) -> int:
        """The number of OpenMP threads of the rank with the fewest threads."""
        return min(rank.threads for rank in self.placement)

    @property
    def preload(self) -> tuple[str, ...]:
        """The paths of the libraries for LD_PRELOAD."""
        return tuple(library for library in (self.allocator, self.openmp) if library)


@dataclass(frozen=True)
class LaunchPlan:
    """The plan of a launch: hosts, ranks and settings, and the reason for each decision.

    Attributes:
        hosts: the hosts with ranks. The first host is the head, which runs rank 0.
        prefix: path of the cluster's folder on the head.
        precision: bf16 or fp32.
        rank_user: the account that ranks run as; "" for the login user.
        provider: libfabric's provider for MPI between hosts; "" for one host.
        shard_optimizer: True if each rank stores only a part of the optimizer.
        spares: hosts that may replace a lost host.
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
        """All hosts that the run is prepared on: the hosts with ranks and the spares."""
        return self.hosts + self.spares

    def with_decision(self, decision: Decision) -> "LaunchPlan":
        """Return the plan with one more decision."""
        return replace(self, decisions=(*self.decisions, decision))

    @property
    def world_size(self) -> int:
        """The number of ranks on all hosts."""
        return sum(host.ranks for host in self.hosts)

    @property
    def interface(self) -> str:
        """The head's network interface for the ranks; "" if it is not known."""
        return self.hosts[0].interface


class Problems:
    """A collector for the errors of several checks. Each check runs in its own `with` block."""

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
        """Return one error with all problems."""
        if len(self._errors) == 1:
            return self._errors[0]
        text = "\n".join(map(str, self._errors)).replace("\n", "\n  ")
        return PlanError(f"{len(self._errors)} problems prevent the launch\n  {text}")


def first_hosts(
    facts: ClusterFacts, count: int | None, absent: Sequence[AbsentHost] = ()
) -> ClusterFacts:
    """Return the first `count` hosts, including the head; all hosts if `count` is None.

    Args:
        facts: hosts that the run may use, the head first.
        absent: the cluster's other hosts.

    Raises:
        PlanError: there are fewer hosts than `count`; the message names the absent hosts.
    """
    available = len(facts.hosts)
    if count and count > available:
        names = ", ".join(host.name for host in facts.hosts)
        subject = "the run can use" if absent else "the cluster has"
        lines = [f"--nodes {count}, but {subject} {counted(available, 'host')}: {names}"]
        fewer = f"or use fewer hosts: --nodes {available}"
        raise PlanError(
            "; ".join([*lines, *(f"{host.name} {host.why}" for host in absent)]),
            "; ".join([*(host.remedy for host in absent), fewer])
            if absent
            else f"add hosts: ftcluster hosts add HOST; {fewer}",
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
    """Decide how many ranks each host runs, on which cores and with which settings.

    The decisions that all ranks share come first, and then the placement on each host.

    Args:
        facts: the hosts. The first host is the head.
        recipe: recipe of the training; None for a user's script, whose batch size and memory are
            not known.
        stacks: all stacks, by name.
        tuned: the recipe's fields that `ftcluster tune` has set.
        ranks_per_host: number of ranks on each host; None for the recipe's value.
        model: size of the model; None if it is not known. If it is known, the plan checks that the
            model fits into the hosts' memory.
        trains: True for training, whose batch must contain a sample for each rank. False allows any
            number of ranks.

    Raises:
        PlanError: there are problems; the message lists all of them with their hosts. Hosts may
            have different stacks or network providers, or unreachable addresses. A host may have
            too few cores or too little memory for its ranks. The batch may contain fewer samples
            than there are ranks. The stack or a host may lack something that the recipe requires.
    """
    inputs = _Inputs(_by_loopback(facts), recipe, stacks, ranks_per_host, model, trains, tuned)
    topologies = [Topology.of(host) for host in inputs.facts.hosts]
    choices = _choose(inputs, topologies)
    world = choices.world_size
    samples = (choices.workload.share(rank, world) for rank in range(world))
    decisions: list[Decision] = []
    hosts: list[HostPlan] = []
    for topology in topologies:
        layout = _lay_out(inputs, choices, topology)
        placement = tuple(replace(rank, samples=next(samples)) for rank in layout.ranks)
        hosts.append(_plan_host(topology.host, placement, recipe))
        reasons = _host_reasons(inputs, choices, topology.host, layout)
        decisions += [
            Decision(what, *reason, (topology.host.name,)) for what, reason in reasons.items()
        ]
    reasons = _launch_reasons(inputs, choices, hosts)
    decisions += [Decision(what, *reason) for what, reason in reasons.items()]
    return LaunchPlan(
        hosts=tuple(hosts),
        prefix=inputs.facts.head.prefix,
        backend=choices.backend[0],
        precision=choices.precision[0],
        ipex=choices.ipex[0],
        shard_optimizer=choices.sharding[0],
        rank_user=inputs.facts.head.rank_user,
        decisions=_grouped(decisions),
        provider=choices.network[0] if choices.network else "",
    )


@dataclass(frozen=True)
class _Inputs:
    """The arguments of `plan`, with the loopback address for a single host."""

    facts: ClusterFacts
    recipe: Recipe | None
    stacks: Mapping[str, Stack]
    ranks_per_host: int | None
    model: ModelSize | None
    trains: bool
    tuned: Tuned

    def reason_of_field(self, name: str, default: object) -> str:
        """Return the reason why a recipe's field differs from its default; "" if it does not."""
        if self.recipe is None or getattr(self.recipe, name) == default:
            return ""
        return self.tuned.reason(self.recipe, name)


@dataclass(frozen=True)
class _Choices:
    """The decisions that all ranks share. Most decisions are a value and its reason.

    Attributes:
        network: libfabric's provider and the reason; None for a single host.
        counts: number of ranks of each host and the reason, by host name.
        sharding: True if each rank stores only a part of the optimizer, and the reason.
    """

    precision: tuple[str, str]
    ipex: tuple[bool, str]
    network: tuple[str, str] | None
    counts: Mapping[str, Count]
    workload: StepWorkload
    sharding: tuple[bool, str]
    backend: tuple[str, str]

    @property
    def world_size(self) -> int:
        """The number of ranks on all hosts."""
        return sum(count.ranks for count in self.counts.values())

    @property
    def workers(self) -> int:
        """The number of oneCCL workers of each rank; 0 without oneCCL."""
        return WORKERS if self.backend[0] == CCL else 0


def _choose(inputs: _Inputs, topologies: Sequence[Topology]) -> _Choices:
    """Make the decisions that all ranks share.

    Raises:
        PlanError: checks failed; the message lists the problems of all checks, see `plan`.
    """
    facts, recipe, stacks = inputs.facts, inputs.recipe, inputs.stacks
    stack = ipex = network = None
    problems = Problems()
    with problems:
        check_addresses(facts)
    with problems:
        check_allocator(facts, recipe)
    precision = choose_precision(recipe, facts.hosts)
    with problems:
        stack = stack_of(facts, stacks)
        ipex = choose_ipex(recipe, facts.hosts, stack, stacks)
    with problems:
        if stack and recipe and inputs.trains:
            check_quantization(recipe, stack, stacks)
    with problems:
        network = choose_network(facts.hosts) if len(facts.hosts) > 1 else None
    workload = StepWorkload(precision=precision[0])
    if recipe and inputs.trains:
        uses_ipex = bool(ipex and ipex[0])
        workload = StepWorkload.of(recipe, precision[0], inputs.model, ipex=uses_ipex)
    counts, workload, sharding = _choose_ranks(inputs, topologies, workload, problems)
    if counts:
        _check_workload(facts, counts, workload, problems)
    backend = None
    if counts and stack:
        with problems:
            backend = _choose_backend(inputs, topologies, stack, counts, workload)
    if problems or not ipex or not backend or not sharding:
        raise problems.together()
    return _Choices(precision, ipex, network, counts, workload, sharding, backend)


def _choose_ranks(
    inputs: _Inputs, topologies: Sequence[Topology], workload: StepWorkload, problems: Problems
) -> tuple[Mapping[str, Count], StepWorkload, tuple[bool, str] | None]:
    """Choose the number of ranks of each host, and whether the optimizer is sharded.

    A rank with a sharded optimizer needs less memory, so a host may have more ranks.

    Returns:
        The number of ranks by host name; the workload with or without sharding; and the choice of
        sharding with its reason. If a check finds a problem, there may be no ranks, and the choice
        may be None.
    """
    requested = requested_count(inputs.recipe, inputs.ranks_per_host, inputs.tuned)
    mbits = network_mbits(inputs.facts)
    counts: Mapping[str, Count] = {}
    sharding = None
    with problems:
        whole, sharded = (
            choose_counts(topologies, requested, replace(workload, sharded=shards))
            for shards in (False, True)
        )
        counts = whole
        sharding = choose_sharding(
            inputs.recipe, inputs.facts, workload, whole, sharded, mbits, inputs.tuned
        )
        if sharding[0]:
            counts, workload = sharded, replace(workload, sharded=True)
    return counts, workload, sharding


def _check_workload(
    facts: ClusterFacts, counts: Mapping[str, Count], workload: StepWorkload, problems: Problems
) -> None:
    """Check that each rank has samples, and that each host has the memory for its ranks."""
    ranks = {name: count.ranks for name, count in counts.items()}
    with problems:
        workload.check_samples(sum(ranks.values()), len(facts.hosts))
    with problems:
        workload.check_memory(facts, ranks)


def _choose_backend(
    inputs: _Inputs,
    topologies: Sequence[Topology],
    stack: Stack,
    counts: Mapping[str, Count],
    workload: StepWorkload,
) -> tuple[str, str]:
    """Choose the backend of torch.distributed. Return the choice and its reason.

    Raises:
        PlanError: the recipe's backend is not possible, see `choose_backend`.
    """
    recipe = inputs.recipe
    world = sum(count.ranks for count in counts.values())
    fewest = min(rank_cores(topology, counts[topology.host.name].ranks) for topology in topologies)
    measured = inputs.facts.known_all_reduce
    sent = workload.sent_at_once(recipe.training.ddp_bucket_cap_mb if recipe else None)
    return choose_backend(recipe, world, fewest, stack, inputs.stacks, measured, sent, inputs.tuned)


def _lay_out(inputs: _Inputs, choices: _Choices, topology: Topology) -> Layout:
    """Place the ranks of a host on its cores."""
    recipe, ranks = inputs.recipe, choices.counts[topology.host.name].ranks
    kept_cores = recipe.communication_cores if recipe else None
    return lay_out(topology, ranks, choices.world_size > 1, choices.workers, kept_cores)


def _plan_host(host: HostFacts, placement: tuple[RankPlan, ...], recipe: Recipe | None) -> HostPlan:
    """Return the plan of a host, given the plans of its ranks."""
    return HostPlan(
        name=host.name,
        address=host.network_address,
        interface=host.network_interface,
        placement=placement,
        allocator=_allocator(host, recipe),
        openmp=host.openmp,
        network=host.network,
    )


def _allocator(host: HostFacts, recipe: Recipe | None) -> str:
    """Return the path of the allocator that a host's ranks preload; "" for none."""
    return "" if recipe and recipe.allocator == "libc" else host.tcmalloc


def _host_reasons(
    inputs: _Inputs, choices: _Choices, host: HostFacts, layout: Layout
) -> dict[str, explain.Reason]:
    """Return the decisions for one host, by subject."""
    count, world = choices.counts[host.name], choices.world_size
    cores_reason = inputs.reason_of_field("communication_cores", None)
    allocator_reason = inputs.reason_of_field("allocator", "auto")
    preloaded = _allocator(host, inputs.recipe)
    return {
        "ranks": (str(count.ranks), count.why),
        "threads per rank": explain.threads(host, layout, world, choices.workers, cores_reason),
        "cores for the system": explain.system(host, layout),
        "memory": explain.memory(host, layout),
        "allocator": explain.allocator(host, preloaded, allocator_reason),
        "OpenMP": explain.openmp(host),
        "network interface": explain.interface(host, len(inputs.facts.hosts)),
    }


def _launch_reasons(
    inputs: _Inputs, choices: _Choices, hosts: Sequence[HostPlan]
) -> dict[str, explain.Reason]:
    """Return the decisions for the whole launch, by subject."""
    workload, world = choices.workload, choices.world_size
    reasons = {
        "precision": choices.precision,
        "ipex": ("on" if choices.ipex[0] else "off", choices.ipex[1]),
        "backend": choices.backend,
    }
    if choices.network:
        reasons["network provider"] = explain.provider(choices.network, choices.backend[0])
    if workload.samples is not None:
        is_sharded, why = choices.sharding
        spread = f"sharded over {world} ranks" if is_sharded else "whole on each rank"
        reasons["optimizer"] = (spread, why)
        if inputs.recipe and workload.local:
            reasons["synchronization"] = explain.synchronization(
                inputs.recipe, len(inputs.facts.hosts), world
            )
        reasons["batch"] = workload.decision(workload.samples, world)
        reasons["memory per rank"] = workload.memory_decision(world)
    reasons["rendezvous"] = explain.rendezvous(inputs.facts)
    threads = [(host.name, [rank.threads for rank in host.placement]) for host in hosts]
    if pace := explain.pace(threads):
        reasons["pace"] = pace
    return reasons


def _by_loopback(facts: ClusterFacts) -> ClusterFacts:
    """Return the facts. A single host gets the loopback address for the rendezvous."""
    if len(facts.hosts) > 1:
        return facts
    head = replace(facts.head, network_address=LOOPBACK, network_interface="lo")
    return replace(facts, hosts=(head,))


def _grouped(decisions: Sequence[Decision]) -> tuple[Decision, ...]:
    """Order decisions by subject, and merge equal decisions of several hosts."""
    hosts: dict[tuple[str, str, str], list[str]] = {}
    for decision in decisions:
        hosts.setdefault((decision.what, decision.value, decision.why), []).extend(decision.hosts)
    order = list(dict.fromkeys(decision.what for decision in decisions))
    merged = [Decision(*made, tuple(names)) for made, names in hosts.items()]
    return tuple(sorted(merged, key=lambda decision: order.index(decision.what)))
