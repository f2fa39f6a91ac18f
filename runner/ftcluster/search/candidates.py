"""List the launch settings that may be faster than the plan's."""

from collections.abc import Iterator, Sequence

from ftcluster.cluster.facts import HostFacts
from ftcluster.planning.plan import LaunchPlan
from ftcluster.planning.topology import Topology
from ftcluster.search.turns import Settings
from ftcluster_common.protocol.cpu_list import parse_cpus
from ftcluster_common.protocol.launch import CCL
from ftcluster_common.recipe import Recipe

RANKS, CORES, ALLOCATOR, BATCH = "ranks_per_host", "communication_cores", "allocator", "batch_size"
BACKEND = "training.ddp_backend"
MORE_RANKS = (2, 4)  # numbers of ranks per NUMA node to try
MOST_CORES = 2  # largest number of cores to try for communication
CORES_A_CORE = 4  # minimum number of a rank's cores for each communication core
BATCHES = (2, 4)  # multiples of the recipe's batch size to try


def candidates(
    recipe: Recipe, hosts: Sequence[HostFacts], plan: LaunchPlan, backends: Sequence[str],
    batch: bool,
) -> Iterator[Settings]:  # fmt: skip
    """Yield single settings that may be faster than the plan's default.

    Fields that the recipe sets are not varied. The settings with the largest expected effect come
    first, because time may run out.

    Args:
        plan: the plan with default settings.
        backends: the torch.distributed backends of the hosts' stack.
        batch: True if larger batch sizes are tried too; they change the trained model.
    """
    training, several = recipe.training, plan.world_size > 1
    fixed_batch = training.per_device_train_batch_size is not None
    if recipe.ranks_per_host is None and not fixed_batch:
        yield from ({RANKS: ranks} for ranks in _rank_counts(recipe, hosts, plan))
    if several and training.ddp_backend == "auto":
        yield from ({BACKEND: name} for name in backends if name != plan.backend)
    if several and recipe.communication_cores is None and plan.backend != CCL:
        yield from ({CORES: cores} for cores in _communication_cores(hosts, plan))
    if recipe.allocator == "auto" and any(host.tcmalloc for host in hosts):
        yield {ALLOCATOR: "libc"}
    if batch and not fixed_batch:
        yield from ({BATCH: times * recipe.batch_size} for times in BATCHES)


def _rank_counts(
    recipe: Recipe, hosts: Sequence[HostFacts], plan: LaunchPlan
) -> Iterator[int]:  # fmt: skip
    """Yield numbers of ranks per host that all hosts can have, except the plan's number."""
    possible = set[int]()
    for host in hosts:
        whole = Topology.of(host).even_counts
        possible |= {*whole, *(times * whole[0] for times in MORE_RANKS)}
    most = min(min(host.cores for host in hosts), recipe.batch_size // len(hosts))
    default = {host.ranks for host in plan.hosts}
    yield from (ranks for ranks in sorted(possible) if ranks <= most and {ranks} != default)


def _communication_cores(hosts: Sequence[HostFacts], plan: LaunchPlan) -> Iterator[int]:
    """Yield numbers of communication cores per rank, except the plan's number.

    Yield nothing if a host has a CPU quota.
    """
    if any(host.cpu_quota is not None for host in hosts):
        return
    ranks = [(len(parse_cpus(r.cpus)), r.threads) for host in plan.hosts for r in host.placement]
    fewest = min(cores for cores, _ in ranks)
    planned = {cores - threads for cores, threads in ranks}
    for cores in range(min(MOST_CORES, fewest // CORES_A_CORE) + 1):
        if {cores} != planned:
            yield cores
