from collections.abc import Callable
from dataclasses import replace

import pytest

from ftcluster.cluster.facts import ClusterFacts, HostFacts, NumaNode
from ftcluster.errors import PlanError
from ftcluster.launch.mpirun import render
from ftcluster.planning.memory import ModelSize
from ftcluster.planning.plan import Decision, HostPlan, LaunchPlan, first_hosts, plan
from ftcluster.planning.topology import Topology
from ftcluster.recipe.recipe import parse_recipe
from ftcluster_common.protocol.launch import mpirun_command
from tests.unit.clusters import STACKS, VM, cluster, host, nodes

RECIPE = parse_recipe("model: m\ndata: d\ntext_columns: [a]\n", "r.yml")
ICE_LAKE = ("avx512f", "avx512_vnni")
BERT = ModelSize(parameters=110_000_000, layers=12, features=768, heads=12, vocabulary=30522)


def decided(*hosts: HostFacts, batch: int = 32, ranks: int | None = None) -> LaunchPlan:
    return plan(cluster(*hosts), replace(RECIPE, batch_size=batch), STACKS, ranks)


def about(launch: LaunchPlan, what: str) -> list[Decision]:
    return [decision for decision in launch.decisions if decision.what == what]


def cpus(planned: HostPlan) -> list[str]:
    return [rank.cpus for rank in planned.placement]


def test_one_rank_a_numa_node_with_its_cores() -> None:
    launch = decided(host("a", cores=64, numa_nodes=2), host("b", cores=32))
    first, second = launch.hosts
    assert (first.ranks, cpus(first), first.threads_per_rank) == (2, ["0-31", "32-63"], 31)
    assert [rank.memory for rank in first.placement] == [(0,), (1,)]
    assert (second.ranks, cpus(second), second.threads_per_rank) == (1, ["0-31"], 31)
    assert [rank.memory for rank in second.placement] == [()]  # there is one node
    assert launch.world_size == 3
    assert launch.hosts[0].address == "a"


def test_the_command_line_overrides_the_recipe() -> None:
    recipe = replace(RECIPE, ranks_per_host=1)
    assert plan(cluster(VM), recipe, STACKS).world_size == 1
    assert plan(cluster(VM), recipe, STACKS, ranks_per_host=2).world_size == 2


def test_bf16_only_where_every_cpu_has_it() -> None:
    new, old = host("new"), host("old", cpu_flags=ICE_LAKE)
    assert plan(cluster(new), RECIPE, STACKS).precision == "bf16"
    mixed = plan(cluster(new, old), RECIPE, STACKS)
    assert mixed.precision == "fp32"
    assert "on old" in about(mixed, "precision")[0].why
    assert plan(cluster(old), replace(RECIPE, precision="bf16"), STACKS).precision == "bf16"


@pytest.mark.parametrize(
    ("flags", "amx", "generation", "precision"),
    [
        (("avx512f", "avx512_bf16"), "absent", "Cooper Lake", "bf16"),
        (("avx512f", "avx512_bf16"), "absent", "other", "bf16"),  # AMD's Zen 4
        # a virtual machine that hides AMX, where bf16 has half of fp32's speed
        (("avx512f", "avx512_bf16"), "absent", "Emerald Rapids", "fp32"),
        (("avx512f", "avx512_bf16", "amx_tile", "amx_bf16"), "refused", "Sapphire Rapids", "fp32"),
        (("avx512f", "amx_tile", "amx_bf16"), "usable", "Sapphire Rapids", "bf16"),
        (("avx2",), "absent", "Broadwell", "fp32"),
    ],
)
def test_bf16_needs_fast_instructions_that_the_kernel_allows(
    flags: tuple[str, ...], amx: str, generation: str, precision: str
) -> None:
    host_facts = host("a", cpu_flags=flags, amx=amx, cpu_generation=generation)
    assert decided(host_facts).precision == precision


def test_hosts_without_amx_are_named_by_what_they_lack() -> None:
    hidden = host("hidden", cpu_flags=("avx512_bf16",), amx="absent")
    old = host("old", cpu_flags=("avx2",), amx="absent", cpu_generation="Broadwell")
    (decision,) = about(plan(cluster(host("new"), hidden, old), RECIPE, STACKS), "precision")
    assert decision.why == (
        "no usable AMX on hidden and no AMX or AVX512-BF16 on old, so bf16 is slower there; "
        "without them, bf16 would be used"
    )


def test_decisions_that_are_the_same_on_several_hosts_are_made_once() -> None:
    launch = decided(*(host(f"n{i}", cores=8) for i in range(1, 4)), host("n4", cores=16))
    assert [one.subject for one in about(launch, "ranks")] == ["ranks on n1-n4"]
    assert [(one.subject, one.value) for one in about(launch, "threads per rank")] == [
        ("threads per rank on n1-n3", "7"),
        ("threads per rank on n4", "15"),
    ]


def test_a_users_script_has_no_batch() -> None:
    launch = plan(cluster(host("a", cores=8, numa_nodes=4)), None, STACKS)
    assert (launch.world_size, launch.backend, launch.ipex) == (4, "impi", False)
    assert not about(launch, "batch")
    assert {rank.samples for rank in launch.hosts[0].placement} == {0}


# --- numbers of ranks


@pytest.mark.parametrize(
    ("batch", "ranks"), [(32, 4), (1, 2), (3, 2), (5, 2)], ids=["cores", "one", "few", "fewer"]
)
def test_too_few_cores_or_samples(batch: int, ranks: int, said: Callable[[object], None]) -> None:
    with pytest.raises(PlanError) as caught:
        decided(host("a"), host("b", cores=8), host("c", cores=3), batch=batch, ranks=ranks)
    said(caught.value)


def test_a_recipe_has_fewer_ranks_where_there_are_fewer_cores() -> None:
    facts = cluster(host("a", cores=1), host("b", cores=8))
    launch = plan(facts, replace(RECIPE, ranks_per_host=2), STACKS)
    assert [len(one.placement) for one in launch.hosts] == [1, 2]
    small, large = about(launch, "ranks")
    assert "each rank needs its own core" in small.why
    assert "core" not in large.why


@pytest.mark.parametrize(
    ("sockets", "count", "possible"),
    [
        (1, 1, (1,)),
        (2, 2, (2, 1)),
        (2, 8, (8, 4, 2, 1)),
        (2, 6, (6, 2, 1)),  # one of three ranks would span the sockets
        (1, 3, (3, 1)),
        (4, 4, (4, 2, 1)),
    ],
)
def test_ranks_have_equally_many_whole_nodes(
    sockets: int, count: int, possible: tuple[int, ...]
) -> None:
    one = host("a", cores=48, numa_nodes=count, sockets=sockets)
    assert Topology.of(one).even_counts == possible


@pytest.mark.parametrize(
    ("batch", "ranks"), [(16, [8, 8]), (15, [4, 4]), (5, [2, 2]), (3, [1, 1]), (2, [1, 1])]
)
def test_there_are_no_more_ranks_than_samples(batch: int, ranks: list[int]) -> None:
    snc4 = {"cores": 112, "numa_nodes": 8, "sockets": 2}
    launch = decided(host("a", **snc4), host("b", **snc4), batch=batch)
    assert [planned.ranks for planned in launch.hosts] == ranks
    assert sum(rank.samples for one in launch.hosts for rank in one.placement) == batch


def test_a_node_with_few_cores_has_no_rank() -> None:
    numa = (NumaNode(0, 3, 10**11, "29-31"), NumaNode(1, 32, 10**11, "32-63"))
    launch = decided(host("a", cores=35, numa=numa), host("b", cores=32))
    assert cpus(launch.hosts[0]) == ["32-63"]
    assert "node 0" in about(launch, "ranks")[0].why


def test_small_nodes_are_taken_together_where_other_hosts_would_wait_for_them() -> None:
    big = host("big", cores=112, numa_nodes=8, sockets=2)
    launch = decided(host("a", cores=32), host("b", cores=32), big)
    assert [planned.ranks for planned in launch.hosts] == [1, 1, 4]
    assert not about(launch, "pace")


@pytest.mark.parametrize(("others", "ranks"), [(1, 2), (2, 2), (3, 1)])
def test_sockets_are_taken_together_only_where_that_is_worth_their_distance(
    others: int, ranks: int
) -> None:
    two_sockets = host("a", cores=32, numa_nodes=2, sockets=2)
    launch = decided(two_sockets, *(host(f"b{i}", cores=32) for i in range(others)))
    assert launch.hosts[0].ranks == ranks


def test_hosts_that_slow_down_the_others_are_named() -> None:
    launch = decided(host("a", cores=32), host("b", cores=32), host("slow"))
    [pace] = about(launch, "pace")
    assert pace.value == "set by slow"
    assert "without slow the run would be 10.3 times as fast" in pace.why


# --- cores


@pytest.mark.parametrize(
    ("cores", "ranks", "expected"),
    [
        (20, 4, ["0-4", "5-9", "10-14", "15-19"]),  # two ranks in each of two nodes
        (20, 3, ["0-5", "6-11", "12-17"]),
        (20, 1, ["0-19"]),
        (2, 2, ["0", "1"]),
    ],
)
def test_cores_of_other_numbers_of_ranks_than_numa_nodes(
    cores: int, ranks: int, expected: list[str]
) -> None:
    launch = decided(host("a", cores=cores, numa_nodes=2), ranks=ranks)
    assert cpus(launch.hosts[0]) == expected
    [count] = about(launch, "ranks")
    assert ("2 or 1 ranks would avoid this" in count.why) == (ranks == 3)
    assert ("2 cores unused" in about(launch, "threads per rank")[0].why) == (ranks == 3)


def test_a_core_is_reserved_for_communication_of_large_ranks() -> None:
    def threads(cores: int, count: int) -> int:
        hosts = [host(f"n{i}", cores=cores) for i in range(count)]
        return decided(*hosts).hosts[0].threads_per_rank

    assert [threads(cores, 2) for cores in (1, 2, 7, 8, 32)] == [1, 2, 7, 7, 31]
    assert threads(32, 1) == 32  # no other rank to communicate with


@pytest.mark.parametrize(("cores", "threads", "kept"), [(64, 64, 1), (64, 128, 0), (32, 32, 0)])
def test_a_core_is_reserved_for_the_system_of_a_single_large_host(
    cores: int, threads: int, kept: int
) -> None:
    launch = decided(host("a", cores=cores, threads=threads))
    assert about(launch, "cores for the system")[0].value == str(kept)
    assert cpus(launch.hosts[0]) == [f"{kept}-{cores - 1}"]
    assert launch.hosts[0].threads_per_rank == cores - kept


def test_emulated_nodes_share_their_cores() -> None:
    numa = tuple(NumaNode(node, 4, 10**10, "0-3") for node in range(4))
    launch = decided(host("a", cores=4, numa=numa))
    assert cpus(launch.hosts[0]) == ["0-3"]
    assert launch.hosts[0].placement[0].memory == ()


def test_a_quota_says_how_many_cores_and_not_which() -> None:
    numa = nodes(64, 2)
    launch = decided(
        host("a", cores=4, numa=numa, cpu_quota=4.0, numa_nodes=2, threads=128),
        host("b", cores=40, numa=numa, cpu_quota=40.0, numa_nodes=2, threads=128),
    )
    first, second = launch.hosts
    assert (cpus(first), first.threads_per_rank) == (["0-63"], 4)
    assert first.placement[0].memory == ()
    assert (cpus(second), second.threads_per_rank) == (["0-31", "32-63"], 19)


def test_half_a_core_is_a_host_of_one() -> None:
    launch = decided(host("a", cores=1, numa=nodes(32, 1), cpu_quota=0.5, threads=64))
    assert (launch.world_size, launch.hosts[0].threads_per_rank) == (1, 1)
    assert about(launch, "ranks")[0].why == "the host's CPU quota is too small for two ranks"


# --- memory


def test_high_bandwidth_memory_is_preferred_and_other_memory_without_cores_is_not() -> None:
    cores = nodes(28, 2)
    for hbm, expected in ((True, [(2,), (3,)]), (False, [(0,), (1,)])):
        memory = tuple(NumaNode(2 + node, 0, 16 * 2**30, "", node, hbm) for node in range(2))
        launch = decided(host("max", cores=28, numa=(*cores, *memory)))
        assert [rank.memory for rank in launch.hosts[0].placement] == expected
        assert ("high-bandwidth" in about(launch, "memory")[0].why) == hbm


def test_one_node_or_several_are_said_as_such() -> None:
    whole, cores, more = nodes(48, 3)
    far = NumaNode(1, 0, 16 * 2**30, "", 0)
    one = decided(host("a", cores=16, numa=(whole, far)))
    assert about(one, "memory")[0].value == "node 0"
    empty = (replace(cores, memory_bytes=0, near=0), replace(more, memory_bytes=0, near=0))
    said = about(decided(host("a", cores=48, numa=(whole, *empty))), "memory")[0]
    assert "nodes 1, 2 have no usable memory" in said.why


def test_ranks_of_several_nodes_take_memory_from_all_of_them() -> None:
    launch = decided(host("a", cores=32, numa_nodes=8, sockets=2), batch=4, ranks=4)
    assert [rank.memory for rank in launch.hosts[0].placement] == [(0, 1), (2, 3), (4, 5), (6, 7)]


def test_a_model_that_fits_says_so_with_its_numbers() -> None:
    launch = plan(cluster(host("a", cores=32)), RECIPE, STACKS, model=BERT)
    [memory] = about(launch, "memory per rank")
    assert memory.value == "up to 4.9 GB"
    assert "18 bytes" in memory.why
    assert "for each of 110 million parameters" in memory.why
    assert "32 samples of 128 tokens" in memory.why
    assert about(decided(VM), "memory per rank")[0].value == "unknown"


WHOLE = replace(RECIPE, training=replace(RECIPE.training, shard_optimizer=False))


def test_fewer_ranks_where_all_of_them_would_not_fit() -> None:
    small = host("a", cores=32, numa_nodes=4, memory_bytes=7 * 10**9)
    launch = plan(cluster(small), WHOLE, STACKS, model=BERT)
    assert launch.world_size == 1
    assert "4 NUMA nodes each: the host's memory is too small" in about(launch, "ranks")[0].why
    parts = replace(WHOLE, training=replace(WHOLE.training, gradient_accumulation_steps=4))
    assert plan(cluster(small), parts, STACKS, model=BERT).world_size == 2


def test_a_model_that_does_not_fit_names_the_hosts_with_the_numbers(
    said: Callable[[object], None],
) -> None:
    small = host("small", memory_bytes=4 * 10**9)
    with pytest.raises(PlanError) as caught:
        plan(cluster(host("large"), small), WHOLE, STACKS, ranks_per_host=2, model=BERT)
    said(caught.value)
    parts = replace(RECIPE, training=replace(RECIPE.training, gradient_accumulation_steps=8))
    assert plan(cluster(small), parts, STACKS, model=BERT).world_size == 1


# --- problems


def test_hosts_need_addresses_that_others_can_use(said: Callable[[object], None]) -> None:
    with pytest.raises(PlanError) as caught:
        decided(
            host("a", network_address="10.0.0.1"),
            host("b", network_address="127.0.1.1"),
            host("c", network_address="c.local", network_interface="lo"),
            host("d", network_address="::1"),
        )
    said(caught.value)
    assert decided(host("a", network_address="127.0.0.1")).world_size == 1
    with pytest.raises(PlanError, match=r"only over IPv4\n  b at fd00::2"):
        decided(host("a", network_address="10.0.0.1"), host("b", network_address="fd00::2"))
    assert decided(host("a", network_address="fd00::2")).world_size == 1
    with pytest.raises(PlanError, match=r"a, b at 10\.0\.0\.1"):
        decided(host("a", network_address="10.0.0.1"), host("b", network_address="10.0.0.1"))


def test_all_problems_are_reported_at_once(said: Callable[[object], None]) -> None:
    facts = cluster(host("a"), host("b", stack="intel-2.8"), host("c", network_address="localhost"))
    recipe = replace(WHOLE, batch_size=2)
    with pytest.raises(PlanError) as caught:
        plan(facts, recipe, STACKS, ranks_per_host=2, model=replace(BERT, parameters=10**9))
    said(caught.value)


def test_facts_are_the_same_after_json() -> None:
    facts = cluster(VM, host("b", cores=1, cpu_quota=0.5, openmp="/opt/libiomp5.so"))
    assert ClusterFacts.from_dict(facts.to_dict()) == facts


def test_the_first_hosts_are_the_head_and_those_after_it() -> None:
    three = cluster(host("head"), host("b"), host("c"))
    assert [[one.name for one in first_hosts(three, n).hosts] for n in (1, 2)] == [
        ["head"], ["head", "b"],
    ]  # fmt: skip
    assert first_hosts(three, 3) == three
    with pytest.raises(PlanError, match="head, b, c"):
        first_hosts(three, 4)


def test_256_hosts() -> None:
    facts = cluster(*(host(f"node{i:03}", cores=64, numa_nodes=2) for i in range(1, 257)))
    launch = plan(facts, replace(RECIPE, batch_size=1024), STACKS, model=BERT)
    assert launch.world_size == 512
    assert {rank.samples for one in launch.hosts for rank in one.placement} == {2}
    assert about(launch, "ranks")[0].subject == "ranks on node001-node256"


def test_the_launch_of_this_machine() -> None:
    launch = render(plan(cluster(VM), RECIPE, STACKS, ranks_per_host=2), "r-1")
    command = mpirun_command(launch)
    assert command.argv == (
        "/opt/ftcluster/current/bin/mpirun",
        "-machinefile",
        "/opt/ftcluster/runs/r-1/hostfile",
        "-n",
        "2",
        "-prepend-pattern",
        "[r-1 %r] ",
        "/opt/ftcluster/current/bin/python",
        "-m",
        "ftcluster_train.host.bind",
        "/opt/ftcluster/current/bin/python",
        "-m",
        "ftcluster_train.engine.rank",
        "/opt/ftcluster/runs/r-1",
    )
    assert command.hostfile == "127.0.0.1:2\n"
    assert command.env == {
        "FTCLUSTER_RUN": "r-1",
        "FTCLUSTER_BACKEND": "impi",
        "FTCLUSTER_PLACEMENT": '{"kinds":[{"env":{"LD_PRELOAD":"/usr/lib/x86_64-linux-gnu/'
        'libtcmalloc_minimal.so.4","TCMALLOC_RELEASE_RATE":"0","GLOO_SOCKET_IFNAME":"lo"},'
        '"ranks":[{"cpus":"0","threads":1,'
        '"memory":[]},{"cpus":"1","threads":1,"memory":[]}]}],"hosts":[[0,1]]}',
        "MASTER_ADDR": "127.0.0.1",
        "I_MPI_PIN": "0",
        "I_MPI_PORT_RANGE": "29600:29799",
        "TOKENIZERS_PARALLELISM": "false",
        "THP_MEM_ALLOC_ENABLE": "1",
    }


@pytest.mark.parametrize(("user", "cache"), [("ftcluster", "/opt/ftcluster/cache"), ("", None)])
def test_only_the_ranks_account_uses_the_python_cache_that_it_can_write(
    user: str, cache: str | None
) -> None:
    launch = render(plan(cluster(replace(VM, rank_user=user)), RECIPE, STACKS), "r-1")
    assert launch.env.get("PYTHONPYCACHEPREFIX") == cache
