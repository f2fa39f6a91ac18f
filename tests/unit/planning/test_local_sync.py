"""Local steps: their requirements and conflicts with other settings."""

from dataclasses import replace

import pytest

from ftcluster.errors import PlanError
from ftcluster.planning.memory import ModelSize
from ftcluster.planning.plan import LaunchPlan, plan
from ftcluster.recipe.recipe import parse_recipe
from tests.unit.clusters import STACKS, cluster, host

RECIPE = parse_recipe("model: m\ndata: d\ntext_columns: [a]\nprecision: bf16\n", "r.yml")
GB = 10**9


def planned(count: int, memory: int = 64 * GB, **training: object) -> LaunchPlan:
    changed = replace(RECIPE.training, **training)  # type: ignore[arg-type]
    recipe = replace(RECIPE, training=changed)
    hosts = [host(f"node{n}", memory_bytes=memory) for n in range(count)]
    return plan(cluster(*hosts), recipe, STACKS, model=ModelSize(10**9))


def decision(launch: LaunchPlan) -> tuple[str, str] | None:
    found = (one for one in launch.decisions if one.what == "synchronization")
    return next(((one.value, one.why) for one in found), None)


def test_the_plan_says_how_rarely_hosts_exchange() -> None:
    found = decision(planned(2, sync="local", sync_steps=16, sync_dtype="int8"))
    assert found
    assert found[0] == "every 16 steps, in int8"
    assert "the model differs" in found[1]
    assert decision(planned(2)) is None


def test_one_rank_has_nobody_to_exchange_with() -> None:
    recipe = replace(RECIPE, training=replace(RECIPE.training, sync="local"))
    found = decision(plan(cluster(host("node0")), recipe, STACKS, ranks_per_host=1))
    assert found == ("each step", "there is only one rank")


def test_it_takes_memory_and_is_not_sharded() -> None:
    # 18 bytes per parameter, plus 16
    assert not planned(2, 44 * GB, sync="local").shard_optimizer
    with pytest.raises(PlanError, match=r"34 bytes .* four more fp32 values"):
        planned(2, 36 * GB, sync="local")
    assert planned(2, 36 * GB)


@pytest.mark.parametrize("other", ["shard_optimizer", "use_ipex"])
def test_what_it_does_not_go_with(other: str) -> None:
    launch = planned(2, sync="local")
    assert (launch.shard_optimizer, launch.ipex) == (False, False)
    with pytest.raises(PlanError, match=f"{other}=true"):
        planned(2, sync="local", **{other: True})


def test_a_model_whose_size_is_not_known_takes_more_too() -> None:
    recipe = replace(RECIPE, training=replace(RECIPE.training, sync="local"))
    launch = plan(cluster(host("node0"), host("node1")), recipe, STACKS)
    memory = next(one for one in launch.decisions if one.what == "memory per rank")
    assert "32 bytes per parameter" in memory.why
