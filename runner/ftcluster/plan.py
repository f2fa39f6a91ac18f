"""Who runs where: from the facts of a cluster and a recipe to one launch. Pure functions only."""

from collections.abc import Mapping
from dataclasses import dataclass

from ftcluster.errors import PlanError
from ftcluster.extensions import choose_backend, choose_ipex, stack_of
from ftcluster.facts import ClusterFacts, HostFacts
from ftcluster.oneccl import CoreSplit, split_cores
from ftcluster.recipe import Recipe
from ftcluster.stacks import Stack

BF16_FLAGS = ("amx_bf16", "avx512_bf16")


@dataclass(frozen=True)
class Decision:
    """One choice of the plan and why it was made.

    Attributes:
        what: the thing decided, e.g. "precision".
        value: what was chosen, as text.
        why: the reason, one line.
    """

    what: str
    value: str
    why: str


@dataclass(frozen=True)
class HostPlan:
    """What one host does.

    Attributes:
        name: the inventory's name.
        address: what mpirun and the ranks call it.
        ranks: number of processes on this host.
        threads_per_rank: OpenMP threads of each process.
        preload: libraries for LD_PRELOAD.
    """

    name: str
    address: str
    ranks: int
    threads_per_rank: int
    preload: tuple[str, ...]


@dataclass(frozen=True)
class LaunchPlan:
    """One launch, complete and without any doubt left.

    Attributes:
        hosts: the hosts that take part, the head first; rank 0 runs on the head.
        prefix: the folder of the cluster on the head.
        backend: the torch.distributed backend.
        precision: bf16 or fp32.
        ipex: whether IPEX optimizes the model.
        split: with ccl, the cores of each host that compute and those that communicate.
        master_address: where the ranks meet; the port is taken on the head at the launch.
        interface: the head's network interface with that address, or "".
        rank_user: the account that ranks run as, or "" for the login user.
        decisions: every choice with its reason.
    """

    hosts: tuple[HostPlan, ...]
    prefix: str
    backend: str
    precision: str
    ipex: bool
    split: CoreSplit | None
    master_address: str
    interface: str
    rank_user: str
    decisions: tuple[Decision, ...]

    @property
    def world_size(self) -> int:
        """Ranks on all hosts together."""
        return sum(host.ranks for host in self.hosts)


def first_hosts(facts: ClusterFacts, count: int) -> ClusterFacts:
    """The head and the hosts after it, `count` in all.

    Raises:
        PlanError: there are fewer.
    """
    if count > len(facts.hosts):
        there = ", ".join(host.name for host in facts.hosts)
        raise PlanError(
            f"{count} hosts are asked for, the cluster has {len(facts.hosts)}: {there}",
            "take fewer: --nodes N, or set up more with ftcluster setup",
        )
    return ClusterFacts(hosts=facts.hosts[:count])


def plan(
    facts: ClusterFacts,
    recipe: Recipe,
    stacks: Mapping[str, Stack],
    ranks_per_host: int | None = None,
) -> LaunchPlan:
    """Decide who runs where.

    Args:
        facts: the hosts; the first one is the head.
        recipe: what is trained.
        stacks: all stacks by name; the hosts have one of them.
        ranks_per_host: the user's word, above the recipe's.

    Raises:
        PlanError: a host has fewer cores than ranks, the batch has fewer samples than there are
            ranks, or the recipe asks for what the hosts' stack lacks; names every such host with
            what it has.
    """
    decisions: list[Decision] = []
    stack = stack_of(facts, stacks)
    wanted, why = _ranks_wanted(recipe, ranks_per_host)
    short = [
        f"{host.name} has {host.cores} cores for {wanted} ranks"
        for host in facts.hosts
        if wanted and host.cores < wanted
    ]
    if short:
        raise PlanError(
            "a rank needs a core of its own\n  " + "\n  ".join(short),
            "take fewer: --ranks-per-host N",
        )
    ranks_of = {host.name: wanted or host.numa_nodes for host in facts.hosts}
    cores_per_rank = min(max(1, host.cores // ranks_of[host.name]) for host in facts.hosts)
    backend, backend_why = choose_backend(
        recipe, list(ranks_of.values()), cores_per_rank, stack, stacks
    )
    split = split_cores(ranks_of[facts.head.name], cores_per_rank) if backend == "ccl" else None
    hosts = []
    for host in facts.hosts:
        ranks = ranks_of[host.name]
        threads = len(split.computing[0]) if split else max(1, host.cores // ranks)
        reason = why or "one a NUMA node: a rank that spans two pays for remote memory every step"
        decisions.append(Decision(f"ranks on {host.name}", str(ranks), reason))
        decisions.append(
            Decision(
                f"threads per rank on {host.name}",
                str(threads),
                f"{host.cores} cores shared by {ranks} ranks, hardware threads of a core not used"
                + (f"; {_communicating(split, cores_per_rank)}" if split else ""),
            )
        )
        preload = (host.tcmalloc,) if host.tcmalloc else ()
        decisions.append(
            Decision(
                f"allocator on {host.name}",
                host.tcmalloc or "libc's",
                "tcmalloc was found there; it takes 13 to 27 % off a step"
                if preload
                else "no tcmalloc on this host; ftcluster setup with root installs it",
            )
        )
        hosts.append(HostPlan(host.name, host.network_address, ranks, threads, preload))

    world_size = sum(host.ranks for host in hosts)
    if recipe.batch_size < world_size:
        raise PlanError(
            f"a batch of {recipe.batch_size} samples cannot be shared by {world_size} ranks",
            f"raise it (batch_size={world_size}) or take fewer ranks (--ranks-per-host N)",
        )
    precision, precision_why = _precision(recipe, facts.hosts)
    decisions.append(Decision("precision", precision, precision_why))
    ipex, ipex_why = choose_ipex(recipe, facts.hosts, stack, stacks)
    decisions.append(Decision("ipex", "on" if ipex else "off", ipex_why))
    decisions.append(Decision("backend", backend, backend_why))
    return LaunchPlan(
        hosts=tuple(hosts),
        prefix=facts.head.prefix,
        backend=backend,
        precision=precision,
        ipex=ipex,
        split=split,
        master_address=facts.head.network_address,
        interface=facts.head.network_interface,
        rank_user=facts.head.rank_user,
        decisions=tuple(decisions),
    )


def _ranks_wanted(recipe: Recipe, ranks_per_host: int | None) -> tuple[int | None, str]:
    if ranks_per_host is not None:
        return ranks_per_host, "as --ranks-per-host says"
    if recipe.ranks_per_host is not None:
        return recipe.ranks_per_host, f"as recipe {recipe.name} says"
    return None, ""


def _communicating(split: CoreSplit, cores_per_rank: int) -> str:
    cores = [str(core) for cores in split.communicating for core in cores]
    are = f"cores {','.join(cores)} are" if len(cores) > 1 else f"core {cores[0]} is"
    if cores_per_rank > len(split.computing[0]):
        return f"{are} kept for oneCCL's workers, one a rank"
    return f"{are} shared with oneCCL's workers, as no rank has a core to spare"


def _precision(recipe: Recipe, hosts: tuple[HostFacts, ...]) -> tuple[str, str]:
    if recipe.precision != "auto":
        return recipe.precision, f"as recipe {recipe.name} says"
    without = [host.name for host in hosts if not set(BF16_FLAGS) & set(host.cpu_flags)]
    if without:
        return "fp32", f"no AMX or AVX512-BF16 on {', '.join(without)}, where bf16 is slower"
    return "bf16", "every host has AMX or AVX512-BF16"
