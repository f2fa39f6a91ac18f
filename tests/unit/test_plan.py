from dataclasses import replace

import pytest

from ftcluster.errors import PlanError
from ftcluster.facts import ClusterFacts
from ftcluster.plan import plan
from ftcluster.recipe import parse_recipe
from ftcluster.render import as_shell, render
from tests.unit.clusters import STACKS, VM, cluster, host

RECIPE = parse_recipe("model: m\ndata: d\ntext_columns: [a]\n", "r.yml")
ICE_LAKE = ("avx512f", "avx512_vnni")


def test_one_rank_a_numa_node_with_the_cores_shared() -> None:
    decided = plan(cluster(host("a", cores=64, numa_nodes=2), host("b", cores=32)), RECIPE, STACKS)
    assert [(h.name, h.ranks, h.threads_per_rank) for h in decided.hosts] == [
        ("a", 2, 32),
        ("b", 1, 32),
    ]
    assert decided.world_size == 3
    assert decided.master_address == "a"


def test_the_users_word_is_above_the_recipes() -> None:
    recipe = replace(RECIPE, ranks_per_host=1)
    assert plan(cluster(VM), recipe, STACKS).world_size == 1
    assert plan(cluster(VM), recipe, STACKS, ranks_per_host=2).world_size == 2


def test_bf16_only_where_every_cpu_has_it() -> None:
    new, old = host("new"), host("old", cpu_flags=ICE_LAKE)
    assert plan(cluster(new), RECIPE, STACKS).precision == "bf16"
    mixed = plan(cluster(new, old), RECIPE, STACKS)
    assert mixed.precision == "fp32"
    assert any("old" in d.why for d in mixed.decisions if d.what == "precision")
    assert plan(cluster(old), replace(RECIPE, precision="bf16"), STACKS).precision == "bf16"


def test_every_decision_has_a_reason() -> None:
    assert all(decision.why for decision in plan(cluster(VM), RECIPE, STACKS).decisions)


def test_too_few_cores_names_every_host() -> None:
    with pytest.raises(PlanError) as caught:
        plan(
            cluster(host("a"), host("b", cores=8), host("c", cores=3)),
            RECIPE,
            STACKS,
            ranks_per_host=4,
        )
    assert "a has 2 cores for 4 ranks" in str(caught.value)
    assert "c has 3 cores for 4 ranks" in str(caught.value)
    assert "b has" not in str(caught.value)


def test_a_batch_smaller_than_the_world() -> None:
    with pytest.raises(PlanError, match="a batch of 1 samples cannot be shared by 2 ranks"):
        plan(cluster(VM), replace(RECIPE, batch_size=1), STACKS, ranks_per_host=2)


def test_facts_survive_the_way_through_json() -> None:
    facts = cluster(VM, host("b"))
    assert ClusterFacts.from_dict(facts.to_dict()) == facts


def test_the_launch_of_this_machine() -> None:
    decided = plan(cluster(VM), RECIPE, STACKS, ranks_per_host=2)
    launch = render(decided, "r-1")
    assert launch.argv == (
        "/opt/ftcluster/current/bin/mpirun",
        "-machinefile",
        "/opt/ftcluster/runs/r-1/hostfile",
        "-n",
        "2",
        "-l",
        "/opt/ftcluster/current/bin/python",
        "-m",
        "ftcluster_train.rank",
        "/opt/ftcluster/runs/r-1",
    )
    assert launch.hostfile == "127.0.0.1:2\n"
    assert launch.env == {
        "FTCLUSTER_RUN": "r-1",
        "FTCLUSTER_BACKEND": "gloo",
        "MASTER_ADDR": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
        "I_MPI_PIN_DOMAIN": "omp",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPYCACHEPREFIX": "/opt/ftcluster/cache",
        "LD_PRELOAD": "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4",
    }
    pasted = as_shell(launch, decided)
    assert "mpirun -machinefile /opt/ftcluster/runs/r-1/hostfile -n 2" in pasted
    assert "OMP_NUM_THREADS=1" in pasted


def test_a_library_is_preloaded_only_where_all_hosts_have_it() -> None:
    decided = plan(cluster(host("a"), host("b", tcmalloc="")), RECIPE, STACKS)
    assert "LD_PRELOAD" not in render(decided, "r-1").env
