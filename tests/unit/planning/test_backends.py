"""The plan decides if a run uses IPEX and oneCCL."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ftcluster.cluster.facts import BENCH, SETUP, AllReduce, ClusterFacts, HostFacts
from ftcluster.errors import PlanError
from ftcluster.launch.mpirun import as_shell, render
from ftcluster.planning.memory import ModelSize
from ftcluster.planning.plan import LaunchPlan, plan
from ftcluster.recipe.recipe import load_recipe, parse_recipe
from ftcluster_common.recipe import Recipe
from tests.unit.clusters import STACKS, cluster, host, nodes, placed

Said = Callable[[object], None]


def recipe(**training: object) -> Recipe:
    base = parse_recipe("model: m\ndata: d\ntext_columns: [a]\n", "r.yml")
    return replace(base, training=replace(base.training, **training))  # type: ignore[arg-type]


def hosts(stack: str, count: int = 1, **changes: object) -> list[HostFacts]:
    values = {"cores": 16, "stack": stack, **changes}
    return [host(f"node{number}", **values) for number in range(count)]


def decided(
    stack: str, ranks: int = 2, count: int = 1, cores: int = 16, **training: object
) -> LaunchPlan:
    return plan(cluster(*hosts(stack, count, cores=cores)), recipe(**training), STACKS, ranks)


def decision(launch: LaunchPlan, what: str) -> str:
    return next(f"{d.value} ({d.why})" for d in launch.decisions if d.what == what)


@pytest.mark.parametrize(
    ("stack", "setting", "ipex"),
    [
        ("native", "auto", False),
        ("native", False, False),
        ("intel-2.8", "auto", True),
        ("intel-2.8", True, True),
        ("intel-2.8", False, False),
    ],
)
def test_ipex(stack: str, setting: object, ipex: bool) -> None:
    launch = decided(stack, use_ipex=setting)
    assert launch.ipex == ipex
    assert decision(launch, "ipex").startswith("on" if ipex else "off")


def test_ipex_is_off_if_a_cpu_is_too_old() -> None:
    new, old = hosts("intel-2.8"), host("old", stack="intel-2.8", cpu_flags=("avx2",))
    launch = plan(cluster(*new, old), recipe(), STACKS)
    assert not launch.ipex
    assert "on old" in decision(launch, "ipex")
    assert plan(cluster(*new, old), recipe(use_ipex=True), STACKS).ipex


def test_what_continues_from_a_checkpoint_does_so_without_ipex() -> None:
    launch = decided("intel-2.8", resume_from_checkpoint="/c")
    assert (launch.ipex, "/c" in decision(launch, "ipex")) == (False, True)
    with pytest.raises(PlanError, match="cannot continue from /c"):
        decided("intel-2.8", use_ipex=True, resume_from_checkpoint="/c")


def test_nf4_needs_bitsandbytes(said: Said) -> None:
    tuning = load_recipe("sft", ["lora_r=16", "load_in_4bit=true"])
    assert plan(cluster(*hosts("native")), tuning, STACKS)
    with pytest.raises(PlanError) as caught:
        plan(cluster(*hosts("intel-2.8")), tuning, STACKS)
    said(caught.value)
    assert plan(cluster(*hosts("intel-2.8")), tuning, STACKS, trains=False)


@pytest.mark.parametrize(
    ("stack", "setting", "ranks", "cores", "backend"),
    [
        ("native", "auto", 2, 16, "impi"),
        ("native", "auto", 1, 16, "gloo"),
        ("native", "gloo", 2, 16, "gloo"),
        ("intel-2.8", "auto", 2, 16, "impi"),
        ("intel-2.7", "impi", 2, 16, "impi"),
        ("intel-2.7", "auto", 2, 16, "ccl"),
        ("intel-2.7", "gloo", 2, 16, "gloo"),
        ("intel-2.7", "auto", 1, 16, "gloo"),
        ("intel-2.7", "auto", 2, 2, "impi"),
        ("intel-2.7", "ccl", 2, 2, "ccl"),
    ],
)
def test_backend(stack: str, setting: str, ranks: int, cores: int, backend: str) -> None:
    launch = decided(stack, ranks, cores=cores, ddp_backend=setting)
    assert launch.backend == render(launch, "r-1").env["FTCLUSTER_BACKEND"] == backend
    assert decision(launch, "backend").startswith(backend)


@pytest.mark.parametrize(
    ("measured", "backend"),
    [
        ({"gloo": 3.0, "impi": 9.0}, "gloo"),
        ({"gloo": 9.0, "impi": 3.0}, "impi"),
        ({"gloo": 3.0}, "impi"),
    ],
)
def test_the_backend_is_the_one_that_was_measured_fastest(
    measured: dict[str, float], backend: str, said: Said
) -> None:
    all_reduce = AllReduce(measured, 4 << 20, 2, SETUP)
    facts = replace(cluster(*hosts("native", 2)), all_reduce=all_reduce)
    launch = plan(facts, recipe(), STACKS)
    assert launch.backend == backend
    said(decision(launch, "backend"))


@pytest.mark.parametrize(
    ("parameters", "lora_r", "backend", "size"),
    [
        (66_000_000, None, "impi", "25 MiB"),  # buckets of 25 MiB
        (1_500_000, None, "gloo", "4 MiB"),  # one bucket of 6 MB
        (66_000_000, 4, "gloo", "1 MiB"),  # adapters
        (10_000, None, "impi", "64 KiB"),
    ],
)
def test_the_backend_is_the_fastest_for_what_a_step_sends(
    parameters: int, lora_r: int | None, backend: str, size: str, said: Said
) -> None:
    # two hosts at 10 Gbit/s, see bench/README.md, "Between hosts"
    others = {
        "65536": {"gloo": 0.197, "impi": 0.160},
        "1048576": {"gloo": 0.970, "impi": 1.10},
        "26214400": {"gloo": 21.5, "impi": 20.7},
    }
    all_reduce = AllReduce({"gloo": 3.33, "impi": 3.40}, 4 << 20, 2, BENCH, others)
    facts = replace(cluster(*hosts("native", 2)), all_reduce=all_reduce)
    read = ClusterFacts.from_dict(json.loads(json.dumps(facts.to_dict())))
    of = ModelSize(parameters, layers=6, features=384)
    trained = load_recipe("sft", [f"lora_r={lora_r}"]) if lora_r else recipe()
    launch = plan(read, trained, STACKS, model=of)
    assert launch.backend == backend
    assert f" for {size}, " in decision(launch, "backend")
    said(decision(launch, "backend"))


@pytest.mark.parametrize("training", [{"use_ipex": True}, {"ddp_backend": "ccl"}])
def test_what_the_stack_does_not_have(training: dict[str, Any], said: Said) -> None:
    with pytest.raises(PlanError) as caught:
        decided("native", **training)
    said(caught.value)


def test_hosts_with_different_numbers_of_ranks_can_use_oneccl() -> None:
    two_nodes = host("a", stack="intel-2.7", cores=32, numa_nodes=2)
    uneven = cluster(two_nodes, host("b", stack="intel-2.7", cores=16))
    launch = plan(uneven, recipe(), STACKS)
    assert launch.backend == "ccl"
    affinities = [
        kind["env"]["CCL_WORKER_AFFINITY"] for kind in placed(render(launch, "r-1"))["kinds"]
    ]
    assert affinities == ["15,31", "15"]


def test_hosts_with_different_stacks_are_named() -> None:
    mixed = cluster(*hosts("native"), host("b", stack="intel-2.8"))
    with pytest.raises(PlanError, match=r"node0 has native, b has intel-2\.8"):
        plan(mixed, recipe(), STACKS)


def test_a_stack_of_a_newer_version() -> None:
    with pytest.raises(PlanError, match="have the stack intel-9"):
        plan(cluster(*hosts("intel-9")), recipe(), STACKS)


@pytest.mark.parametrize(
    ("ranks", "cores", "affinity", "computing", "threads"),
    [
        (1, 4, "3", ["0-2"], 3),
        (2, 16, "7,15", ["0-6", "8-14"], 7),
        (2, 17, "7,15", ["0-6", "8-14"], 7),  # the odd core is unused
        (4, 128, "31,63,95,127", ["0-30", "32-62", "64-94", "96-126"], 31),
        (2, 2, "0,1", ["0", "1"], 1),  # set by the user; each rank's only core does both
    ],
)
def test_cores_are_reserved_for_oneccl(
    ranks: int, cores: int, affinity: str, computing: list[str], threads: int
) -> None:
    launch = decided("intel-2.7", ranks, count=2, cores=cores, ddp_backend="ccl")
    assert render(launch, "r-1").env["CCL_WORKER_COUNT"] == "1"
    [kind] = placed(render(launch, "r-1"))["kinds"]
    assert kind["env"]["CCL_WORKER_AFFINITY"] == affinity
    assert [rank["cpus"] for rank in kind["ranks"]] == computing
    assert {rank["threads"] for rank in kind["ranks"]} == {threads}
    assert f"CPUs {affinity} " in decision(launch, "threads per rank")


def test_each_host_reserves_its_own_cores() -> None:
    facts = cluster(*hosts("intel-2.7", cores=32), host("b", stack="intel-2.7", cores=8))
    kinds = placed(render(plan(facts, recipe(), STACKS, 2), "r-1"))["kinds"]
    assert [kind["env"]["CCL_WORKER_AFFINITY"] for kind in kinds] == ["15,31", "3,7"]
    assert [kind["ranks"][0]["threads"] for kind in kinds] == [15, 3]


def test_workers_of_ranks_that_share_cores_under_a_quota_have_cores_of_their_own() -> None:
    limited = host("a", stack="intel-2.7", cores=8, numa=nodes(16, 1), cpu_quota=8.0)
    [kind] = placed(render(plan(cluster(limited), recipe(), STACKS, 2), "r-1"))["kinds"]
    assert kind["env"]["CCL_WORKER_AFFINITY"] == "15,14"
    assert [rank["cpus"] for rank in kind["ranks"]] == ["0-14", "0-13,15"]
    assert [rank["threads"] for rank in kind["ranks"]] == [3, 3]


def test_gloo_has_no_variables_of_oneccl() -> None:
    launch = decided("intel-2.7", ddp_backend="gloo")
    assert "CCL_" not in json.dumps(render(launch, "r-1").to_dict())
    assert "setvars.sh" not in as_shell(render(launch, "r-1"), launch)


def test_the_shell_command_sources_the_bindings_environment_first() -> None:
    launch = decided("intel-2.7")
    before, _, after = as_shell(render(launch, "r-1"), launch).partition(
        ". /opt/ftcluster/current/lib/python3*/site-packages/"
        "oneccl_bindings_for_pytorch/env/setvars.sh\n"
    )
    assert "mpirun" not in before
    assert "env PATH=/opt/ftcluster/current/bin:$PATH" in after
