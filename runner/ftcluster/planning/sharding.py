"""Decide whether the optimizer is sharded over the ranks. Pure functions only.

In bf16, a step with a sharded optimizer sends fewer bytes (see `bytes_share`) and computes the same
amount (bench/README.md). Sharding is therefore faster if a step waits for the network.
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

SLOW_MBITS = 2500  # up to this network speed, sharding was faster in measurements
WORTH = 0.75  # shard only if the traffic is at most this fraction of the unsharded traffic


def choose_sharding(
    recipe: Recipe | None,
    facts: ClusterFacts,
    batch: StepWorkload,
    counts: Mapping[str, Count],
    sharded_counts: Mapping[str, Count],
    mbits: float | None,
    tuned: Tuned = UNTUNED,
) -> tuple[bool, str]:
    """Decide whether the optimizer is sharded over the ranks. Return the choice and its reason.

    Args:
        recipe: recipe of the training; None for a user's script.
        batch: the workload without sharding.
        counts: number of ranks of each host without sharding, by host name.
        sharded_counts: number of ranks of each host with sharding, by host name.
        mbits: speed of the network between hosts in Mbit/s; None if it is not known.

    Raises:
        PlanError: the recipe requires sharding, but the run uses IPEX or takes local steps.
    """
    if recipe is None:
        return False, "the script decides"
    asked = recipe.training.shard_optimizer
    if recipe.training.sync == "local":
        why = "with sync: local, each rank keeps all weights"
        if asked is True:
            raise PlanError(
                f"training.shard_optimizer=true is not possible: {why}",
                "remove one of the two settings",
            )
        return False, why
    if batch.ipex:
        why = "IPEX needs all weights in fp32 on each rank"
        if asked is True:
            raise PlanError(
                f"training.shard_optimizer=true is not possible: {why}",
                "set training.use_ipex=false",
            )
        return False, why
    if recipe.lora_r is not None:
        return False, "only adapters are trained, and their optimizer state is small"
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
        assert whole  # without a known need, there would be no memory limit
        assert part
        return True, (
            f"with sharding, a rank needs {gigabytes(part.total)} instead of "
            f"{gigabytes(whole.total)}, which would be too much for the memory of "
            f"{short_names(full)}"
        )
    if mbits is None or mbits > SLOW_MBITS:
        return False, "memory suffices, and no network is known to be slow enough for sharding"
    if batch.precision == "fp32" or batch.parts > 1:
        return False, (
            "memory suffices, and sharding saves no traffic in fp32 or with accumulation steps"
        )
    share = bytes_share(batch)
    if share > WORTH:
        return False, (
            f"memory suffices, and because of the embeddings, sharding would still send "
            f"{share:.0%} of the bytes"
        )
    return True, f"sharding sends {share:.0%} of the bytes, on a network with {mbits:.0f} Mbit/s"


def bytes_share(batch: StepWorkload) -> float:
    """Return the traffic of a step in bf16 with sharding, relative to the traffic without sharding.

    With sharding, ranks send gradients and weights in bf16, and gradients of embeddings in fp32.
    Without sharding, they send each gradient in fp32 twice: to reduce it, and to distribute the
    result. They send only the batch's rows of an embedding matrix, which this estimate ignores. If
    a model predicts tokens, its last layer is assumed to share the embedding matrix, so that all
    rows are sent. A model of unknown size is assumed to have no embeddings.
    """
    model = batch.model
    embeddings = model.vocabulary * model.features / model.parameters if model else 0.0
    whole = 8.0 if batch.predicts_tokens else 8 * max(1 - embeddings, 0.01)
    return (4 + 2 * embeddings) / whole
