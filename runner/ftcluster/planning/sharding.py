"""Whether the optimizer is sharded over the ranks. Pure functions only.

A step without shards sends 4 bytes a gradient twice, to be summed and back; of large embeddings
only the rows of the batch. With shards it sends them once, in bf16 where the model computes them
so, and bf16 weights back: about half without embeddings. Its own work
took 3 ns a parameter longer (DistilBERT on two ranks of one thread), which is what half of the
bytes take at 10 Gbit/s; so it pays on slower networks only.
"""

from collections.abc import Mapping
from dataclasses import replace

from ftcluster.cluster.facts import ClusterFacts
from ftcluster.errors import PlanError
from ftcluster.planning.batch import Batch
from ftcluster.planning.memory import gigabytes
from ftcluster.planning.network import host_bytes, nominal_mbits
from ftcluster.planning.rank_counts import Count, choose_counts
from ftcluster.text.host_names import short_names
from ftcluster_common.recipe import Recipe

SLOW_MBITS = 2500  # a quarter of the speed at which it makes no difference


def choose_sharding(
    recipe: Recipe | None,
    facts: ClusterFacts,
    requested: Count | None,
    batch: Batch,
    counts: Mapping[str, Count],
) -> tuple[bool, str]:
    """Whether each rank has only a part of the optimizer, and why.

    Args:
        recipe: None for a user's own script.
        requested: see `choose_counts`.
        batch: without shards.
        counts: the ranks of each host without shards.

    Raises:
        PlanError: the recipe requires it, and the run uses IPEX or takes local steps.
    """
    if recipe is None:
        return False, "the script decides"
    asked = recipe.training.shard_optimizer
    if recipe.training.sync == "local":
        why = "with sync: local each rank has all weights"
        if asked is True:
            raise PlanError(f"training.shard_optimizer=true: {why}", "leave one of them out")
        return False, why
    if batch.ipex:
        why = "IPEX needs all weights in fp32 on each rank"
        if asked is True:
            raise PlanError(f"training.shard_optimizer=true: {why}", "set training.use_ipex=false")
        return False, why
    if asked != "auto":
        return asked, f"set in recipe {recipe.name}"
    sharded = replace(batch, sharded=True)
    more = choose_counts(facts, requested, sharded)
    world, world_sharded = (sum(c.ranks for c in found.values()) for found in (counts, more))
    if world_sharded == 1:
        return False, "there is only one rank"
    full = [
        host.name
        for host in facts.hosts
        if more[host.name].ranks > counts[host.name].ranks
        or not batch.fits(host, counts[host.name].ranks, world)
    ]
    if full:
        whole, part = batch.need(world_sharded), sharded.need(world_sharded)
        assert whole  # else there would be no limit
        assert part
        return True, (
            f"a rank needs {gigabytes(part.total)} instead of {gigabytes(whole.total)}, which "
            f"would be too much for the memory of {short_names(full)}"
        )
    speed = _network_mbits(facts)
    if speed is None or speed > SLOW_MBITS:
        return False, "memory suffices, and no network is known to be so slow that it is faster"
    if batch.precision == "fp32" or batch.parts > 1:
        return False, "memory suffices; in fp32 or with accumulation steps it sends no fewer bytes"
    return True, f"it sends fewer bytes, over a network of {speed:.0f} Mbit/s"


def _network_mbits(facts: ClusterFacts) -> float | None:
    """The speed of the network between hosts as it was measured, or else its nominal one.

    None if there is one host, or neither is known.
    """
    hosts = len(facts.hosts)
    if hosts == 1:
        return None
    if measured := facts.known_all_reduce:
        megabits = host_bytes(measured.bytes, hosts) * 8 / 1e6
        return megabits / (min(measured.ms.values()) / 1000)
    return nominal_mbits(facts.hosts)
