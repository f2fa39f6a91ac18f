"""Hosts that may replace a lost host."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from ftcluster.ansible.playbook import PlaybookOutcome
from ftcluster.cluster.facts import HostFacts
from ftcluster.cluster.saved import Cluster
from ftcluster.errors import PlanError, UsageError
from ftcluster.launch.mpirun import as_shell, render
from ftcluster.launch.run import Followed, failure
from ftcluster.launch.training_run import TrainingRun
from ftcluster.planning.plan import LaunchPlan, plan
from ftcluster.planning.spares import next_hosts, plan_with_spares
from ftcluster.progress.state import RunProgress
from ftcluster.recipe.recipe import parse_recipe
from ftcluster_common.protocol.launch import mpirun_command
from tests.unit.clusters import STACKS, cluster, host, placed

RECIPE = parse_recipe("model: m\ndata: d\ntext_columns: [a]\n", "r.yml")
RUN = cluster(host("a", cores=64, numa_nodes=2), host("b", cores=64, numa_nodes=2))


def decided(*spares: HostFacts) -> LaunchPlan:
    return plan_with_spares(RUN, spares, RECIPE, STACKS, drained={})


def test_a_spare_has_as_many_ranks_bound_to_its_own_cores() -> None:
    found = decided(host("c", cores=16, numa_nodes=1), host("d", cores=64, numa_nodes=2))
    without = plan(RUN, RECIPE, STACKS)
    assert replace(found, spares=(), decisions=found.decisions[:-1]) == without
    assert [[rank.cpus for rank in spare.placement] for spare in found.spares] == [
        ["0-7", "8-15"], ["0-31", "32-63"],
    ]  # fmt: skip
    assert (found.decisions[-1].what, found.decisions[-1].value) == ("spares", "c, d")
    assert [one.name for one in found.prepared] == ["a", "b", "c", "d"]


def test_a_launch_has_what_a_restart_on_a_spare_needs() -> None:
    found = decided(host("c", cores=16, numa_nodes=1))
    launch = render(found, "r-1")
    assert (mpirun_command(launch).hostfile, launch.spares, launch.nodes) == ("a:2\nb:2\n", 1, 2)
    moved = launch.on((launch.hosts[0], launch.idle[0]))
    assert mpirun_command(moved).hostfile == "a:2\nc:2\n"
    placement = placed(moved)
    [_, [kind, _]] = placement["hosts"]
    assert [rank["cpus"] for rank in placement["kinds"][kind]["ranks"]] == ["0-7", "8-15"]
    assert "for host in b c;" in as_shell(launch, found, {})


def test_hosts_with_different_numbers_of_ranks() -> None:
    mixed = cluster(host("a", cores=64, numa_nodes=2), host("b", cores=32))
    found = plan_with_spares(mixed, (host("c", cores=32),), RECIPE, STACKS, drained={})
    assert [one.ranks for one in found.prepared] == [2, 1, 1]


def test_a_spare_with_which_the_run_would_be_another_one(said: Callable[[object], None]) -> None:
    with pytest.raises(PlanError) as caught:
        decided(host("c", cpu_flags=("avx512f",), amx="absent"))
    said(caught.value)
    with pytest.raises(PlanError, match="c has 1 core for 2 ranks"):
        decided(host("c", cores=1))


@pytest.mark.parametrize(("nodes", "count"), [(2, 2), (None, 1), (1, 1)])
def test_too_few_hosts_for_spares(
    nodes: int | None, count: int, said: Callable[[object], None]
) -> None:
    three = cluster(host("a"), host("b"), host("c"))
    with pytest.raises(UsageError) as caught:
        next_hosts(three, nodes, count)
    said(caught.value)


def test_spares_are_the_next_hosts_of_the_inventory() -> None:
    four = cluster(host("a"), host("b"), host("c"), host("d"))
    assert [one.name for one in next_hosts(four, 2, 1)] == ["c"]
    assert next_hosts(four, 2, 0) == next_hosts(four, None, 0) == ()


@pytest.mark.parametrize(("named", "host_name"), [("c", "c"), ("ip-10-0-0-2", "b")])
def test_a_rank_that_failed_on_a_spare_is_named_with_it(named: str, host_name: str) -> None:
    found = decided(host("c", cores=64, numa_nodes=2))
    run = TrainingRun("r-1", Cluster((), RUN), found, render(found, "r-1"), RECIPE)
    progress = RunProgress(run="r-1")
    progress.add({"event": "error", "message": "m", "hint": "", "host": named, "rank": 2})
    error = failure(run, Followed(progress, PlaybookOutcome("failed", "")))
    assert str(error) == f"run r-1 failed: rank 2 on {host_name}: m"
    assert run.job["nodes"] == 2
    for event in (
        {"event": "restart", "restart": 2, "max_restarts": 2, "message": "m"},
        {"event": "checkpoint", "step": 8, "folder": "/c", "seconds": 1.0},
    ):
        progress.add(event)
    error = failure(run, Followed(progress, PlaybookOutcome("failed", "")))
    assert error.message == f"run r-1 failed after 2 restarts: rank 2 on {host_name}: m"
    assert error.hint == "continue it: ftcluster train --resume r-1"
