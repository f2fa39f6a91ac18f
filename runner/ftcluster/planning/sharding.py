"""Decide whether the optimizer is sharded over the ranks. Pure functions only.

A step in bf16 sends fewer bytes with shards, see `bytes_share`, and computes no more than without
(bench/README.md). It is therefore faster if a step waits for the network.
"""

from collections.abc import Mapping
from dataclasses import replace

from ftcluster.cluster.facts import ClusterFacts
from ftcluster.errors import PlanError
from ftcluster.planning.batch import StepWorkload
from ftcluster.planning.memory import gigabytes
from ftcluster.planning.rank_counts import Count
from ftcluster.planning.tuned import UNTUNED, Tuned
from ftcluster.text.host_names import short_names
from ftcluster_common.recipe import Recipe

SLOW_MBITS = 2500  # sharding was measured to be faster up to this network speed
WORTH = 0.75  # largest fraction of the unsharded traffic that is worth it


def choose_sharding(
    recipe: Recipe | None,
    facts: ClusterFacts,
    batch: StepWorkload,
    counts: Mapping[str, Count],
    sharded_counts: Mapping[str, Count],
    mbits: float | None,
    tuned: Tuned = UNTUNED,
) -> tuple[bool, str]:
    """Decide whether each rank has only a part of the optimizer; return the choice and its reason.

    Args:
        recipe: None for a user's own script.
        batch: the workload without shards.
        counts: the ranks of each host without shards.
        sharded_counts: the ranks of each host with shards.
        mbits: speed of the network between hosts in Mbit/s, if known.

    Raises:
        PlanError: the recipe requires sharding, but the run uses IPEX or takes local steps.
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
    if recipe.lora_r is not None:
        return False, "only adapters are trained, and their optimizer is small"
    if asked != "auto":
        return asked, tuned.reason(recipe, "training.shard_optimizer")
    sharded = replace(batch, sharded=True)
    world, world_sharded = (
        sum(count.ranks for count in placed.values()) for placed in (counts, sharded_counts)
    )
    if world_sharded == 1:
        return False, "there is only one rank"
    full = [
        host.name
        for host in facts.hosts
        if sharded_counts[host.name].ranks > counts[host.name].ranks
        or not batch.fits(host, counts[host.name].ranks, world)
    ]
    if full:
        whole, part = batch.need(world_sharded), sharded.need(world_sharded)
        assert whole  # otherwise there would be no limit
        assert part
        return True, (
            f"a rank needs {gigabytes(part.total)} instead of {gigabytes(whole.total)}, which "
            f"would be too much for the memory of {short_names(full)}"
        )
    if mbits is None or mbits > SLOW_MBITS:
        return False, "memory suffices, and no network is known to be so slow that it is faster"
    if batch.precision == "fp32" or batch.parts > 1:
        return False, "memory suffices; in fp32 or with accumulation steps it sends no fewer bytes"
    share = bytes_share(batch)
    if share > WORTH:
        return False, f"memory suffices; with these embeddings it sends {share:.0%} of the bytes"
    return True, f"it sends {share:.0%} of the bytes, over a network of {mbits:.0f} Mbit/s"


def bytes_share(batch: StepWorkload) -> float:
    """Return the traffic of a step in bf16 with shards, relative to the traffic without shards.

    Bytes per parameter, ignoring the rows of the batch. With shards: gradients and weights in bf16,
    and gradients of embeddings in fp32. Without: all gradients in fp32 twice, for the reduction and
    back, except embeddings whose gradients only have rows. If a model predicts tokens, its
    embeddings are assumed to be its last layer too. An unknown model is assumed to have none.
    """
    model = batch.model
    embeddings = model.vocabulary * model.features / model.parameters if model else 0.0
    whole = 8.0 if batch.predicts_tokens else 8 * max(1 - embeddings, 0.01)
    return (4 + 2 * embeddings) / whole
