"""The plan decides if ranks shard the optimizer, and how much memory that frees."""

from dataclasses import replace

import pytest

from ftcluster.cluster.facts import SETUP, AllReduce, ClusterFacts, HostFacts
from ftcluster.errors import PlanError
from ftcluster.planning.batch import StepWorkload
from ftcluster.planning.memory import ModelSize, need
from ftcluster.planning.plan import LaunchPlan, plan
from ftcluster.planning.sharding import bytes_share
from ftcluster.recipe.recipe import parse_recipe
from tests.unit.clusters import STACKS, cluster, host

RECIPE = parse_recipe("model: m\ndata: d\ntext_columns: [a]\nprecision: bf16\n", "r.yml")
LARGE = ModelSize(1_000_000_000)  # 18 GB of weights, gradients and AdamW's states
GB = 10**9


def hosts(count: int, memory: int = 64 * GB, mbits: int | None = 10_000) -> list[HostFacts]:
    nics = ({"name": "eth0", "speed_mbits": mbits},)
    return [
        host(f"node{n}", memory_bytes=memory, network_interface="eth0", nics=nics)
        for n in range(count)
    ]


def planned(
    found: list[HostFacts],
    model: ModelSize | None = LARGE,
    precision: str = "bf16",
    **training: object,
) -> LaunchPlan:
    changed = replace(RECIPE.training, **training)  # type: ignore[arg-type]
    recipe = replace(RECIPE, precision=precision, training=changed)  # type: ignore[arg-type]
    return plan(cluster(*found), recipe, STACKS, model=model)


def why(launch: LaunchPlan) -> str:
    return next(one.why for one in launch.decisions if one.what == "optimizer")


def test_a_model_that_fits_no_host_trains_on_several() -> None:
    with pytest.raises(PlanError, match="a rank needs 23 GB: 18 bytes") as caught:
        planned(hosts(1, 16 * GB))
    assert "more hosts" in str(caught.value)
    launch = planned(hosts(2, 18 * GB))
    assert launch.shard_optimizer
    assert "23 GB, which would be too much for the memory of node0-node1" in why(launch)
    with pytest.raises(PlanError, match="a rank needs 23 GB") as caught:
        planned(hosts(2, 18 * GB), shard_optimizer=False)
    assert "training.shard_optimizer=true" in str(caught.value)
    with pytest.raises(PlanError, match="more hosts or hosts with more memory"):
        planned(hosts(2, 12 * GB))
    assert planned(hosts(8, 12 * GB)).shard_optimizer


def test_more_ranks_fit_a_host_with_it() -> None:
    found = [host("node0", cores=32, numa_nodes=4, memory_bytes=60 * GB)]
    whole = planned(found, shard_optimizer=False)
    launch = planned(found)
    assert (whole.world_size, launch.world_size, launch.shard_optimizer) == (2, 4, True)


@pytest.mark.parametrize("model", [LARGE, None])
def test_it_is_chosen_for_its_speed_on_slow_networks_only(model: ModelSize | None) -> None:
    assert "1000 Mbit/s" in why(planned(hosts(2, mbits=1000), model))
    for launch in (
        planned(hosts(2), model),
        planned(hosts(2, mbits=None), model),
        planned(hosts(1, mbits=1000), model),
        planned(hosts(2, mbits=1000), model, "fp32"),
        planned(hosts(2, mbits=1000), model, gradient_accumulation_steps=2),
    ):
        assert not launch.shard_optimizer


@pytest.mark.parametrize(
    ("model", "predicts_tokens", "share"),
    [
        (None, False, 0.5),
        (ModelSize(124_439_808, 12, 768, 12, 50257), True, 0.58),  # GPT-2
        (ModelSize(109_483_778, 12, 768, 12, 30522), False, 0.70),  # BERT
        (ModelSize(66_955_010, 6, 768, 12, 30522), False, 0.90),  # DistilBERT
    ],
)
def test_the_share_of_the_bytes(
    model: ModelSize | None, predicts_tokens: bool, share: float
) -> None:
    batch = StepWorkload(precision="bf16", model=model, predicts_tokens=predicts_tokens)
    assert bytes_share(batch) == pytest.approx(share, abs=0.01)


def test_large_embeddings_are_no_reason_for_it() -> None:
    small = ModelSize(66_955_010, 6, 768, 12, 30522)
    assert "90% of the bytes" in why(launch := planned(hosts(2, mbits=1000), small))
    assert not launch.shard_optimizer


@pytest.mark.parametrize(("milliseconds", "chosen"), [(5.0, False), (30.0, True)])
def test_the_speed_that_was_measured_counts(milliseconds: float, chosen: bool) -> None:
    """4 MiB in 5 and 30 ms are 6.7 and 1.1 Gbit/s."""
    measured = AllReduce({"gloo": 50.0, "impi": milliseconds}, 4 << 20, 2, SETUP)
    facts = ClusterFacts(tuple(hosts(2, mbits=100)), measured)
    assert plan(facts, RECIPE, STACKS).shard_optimizer is chosen


def test_a_recipe_decides() -> None:
    assert planned(hosts(2), shard_optimizer=True).shard_optimizer
    assert not planned(hosts(2, mbits=1000), shard_optimizer=False).shard_optimizer


def test_not_with_ipex() -> None:
    intel = [replace(one, stack="intel-2.8") for one in hosts(2, mbits=1000)]
    assert not planned(intel).shard_optimizer
    with pytest.raises(PlanError, match="shard_optimizer=true is not possible: IPEX"):
        planned(intel, shard_optimizer=True)
    assert planned(intel, shard_optimizer=True, use_ipex=False).shard_optimizer


@pytest.mark.parametrize(
    ("precision", "shards", "each"),
    [("bf16", 2, 10), ("bf16", 8, 4), ("fp32", 2, 10), ("fp32", 4, 7)],
)
def test_bytes_a_parameter(precision: str, shards: int, each: int) -> None:
    found = need(LARGE, precision, 8, 128, predicts_tokens=False, shards=shards)
    assert found.states / LARGE.parameters == pytest.approx(each, abs=0.2)
    assert found.saving == 4 * LARGE.parameters
