"""The command `bench scaling` without the trainings themselves."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from ftcluster.benchmark.modes import ALL
from ftcluster.benchmark.scaling import Point, document, lines
from ftcluster.benchmark.scaling_model import Mode
from ftcluster.cluster.saved import Cluster, remember
from ftcluster.launch import training_run
from ftcluster.launch.training_run import TrainingRun
from ftcluster.operations.benchmark import bench_scaling
from ftcluster.progress.state import RunProgress
from tests.unit.clusters import VM, cluster, host
from tests.unit.shell import Said, Shell


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[TrainingRun]:
    """Record the launched trainings; each rank trains 10 samples per second.

    All ranks except the second are blocked for a quarter of the time.
    """
    runs: list[TrainingRun] = []

    def train(run: TrainingRun, *_: Any, on_event: Callable[[dict[str, Any]], None]) -> RunProgress:
        runs.append(run)
        on_event({"event": "start", "parameters": 250, "train_samples": 3600})
        settings, ranks = run.recipe.training, run.plan.world_size
        seconds = run.recipe.batch_size / ranks / 10
        for step in range(1, settings.max_steps + 1):
            if step % settings.logging_steps == 0 or step == settings.max_steps:
                waited = [(rank != 1) * step * seconds / 4 for rank in range(ranks)]
                on_event(
                    {
                        "event": "communication",
                        "step": step,
                        "train_seconds": 5.0 + step * seconds,  # the first steps take longer
                        "tokens": 100 * step,
                        "waited_seconds": waited if ranks > 1 else [0.0],
                        "sent_bytes": 1000 * step * (ranks - 1) / ranks,
                        "collectives": 10 * step,
                        "latency_seconds": 1e-6 * (ranks - 1),
                    }
                )
        return RunProgress(run.id)

    monkeypatch.setattr(training_run, "train", train)
    monkeypatch.setattr(bench_scaling, "clean_runs", lambda _, ids: list(ids))
    return runs


def bench(shell: Shell, *words: str) -> Any:
    return shell(["bench", "scaling", "--json", *words]).document


def test_hosts(trained: list[TrainingRun], shell: Shell) -> None:
    hosts = cluster(*(host(f"node{number}", cores=16) for number in range(5)))
    remember(Cluster((Path("/inventory.ini"),), hosts))
    found = bench(shell, "quickstart", "--steps", "7", "batch_size=40")
    assert [len(run.plan.hosts) for run in trained] == [1, 2, 4, 5]
    assert [run.recipe.batch_size for run in trained] == [8, 16, 32, 40]
    assert {run.recipe.training.max_steps for run in trained} == {7}
    assert [point["speed_up"] for point in found["points"]] == [1, 2, 4, 5]
    assert {point["efficiency"] for point in found["points"]} == {1}


@pytest.mark.usefixtures("trained")
def test_the_cost_of_an_epoch(shell: Shell) -> None:
    """An epoch has 3600 samples, and the host's two ranks train 20 of them per second."""
    priced = [host(f"node{n}", cores=16, numa_nodes=2, price_per_hour="4 EUR") for n in (1, 2)]
    remember(Cluster((Path("/inventory.ini"),), cluster(*priced)))
    found = bench(shell, "quickstart", "--steps", "7")
    epochs = [point["epoch"] for point in found["points"]]
    assert epochs == [{"seconds": 180.0, "cost": 0.2}, {"seconds": 90.0, "cost": 0.2}]
    head, one, two = list(lines(found))[2:5]
    assert head.split()[9:12] == ["an", "epoch", "costs"]
    assert re.search(r" 3:00 +0\.20 EUR ", one)
    assert re.search(r" 1:30 +0\.20 EUR ", two)


def test_ranks_of_one_host(trained: list[TrainingRun], shell: Shell) -> None:
    remember(Cluster((Path("/inventory.ini"),), cluster(VM)))
    found = bench(shell)
    assert [point["ranks"] for point in found["points"]] == [1, 2]
    assert [run.recipe.batch_size for run in trained] == [16, 32]
    # with two ranks, each has one of the two cores
    assert [point["threads"] for point in found["points"]] == [2, 2]
    assert [point["efficiency"] for point in found["points"]] == [1, 2]


def test_modes(trained: list[TrainingRun], shell: Shell, tmp_path: Path) -> None:
    hosts = cluster(*(host(f"node{number}", cores=16) for number in range(4)))
    remember(Cluster((Path("/inventory.ini"),), hosts))
    picture = str(tmp_path / "scaling.svg")
    found = bench(shell, "--ranks-per-host", "1", "--modes", "all", "--svg", picture)
    assert [len(run.plan.hosts) for run in trained] == [1] + [2] * 12 + [4] * 12
    chosen = {
        (one.ddp_backend, one.gradient_dtype, one.shard_optimizer, one.sync, one.sync_dtype)
        for run in trained[1:13]
        for one in [run.recipe.training]
    }
    assert len(chosen) == 12
    assert {
        run.recipe.training.max_steps for run in trained if run.recipe.training.sync == "step"
    } == {30}
    assert {
        run.recipe.training.max_steps for run in trained if run.recipe.training.sync == "local"
    } == {96}
    point = found["points"][-1]
    assert point["slowest"] == "node1"
    assert point["waiting"] == 0.25 * 3 / 4
    assert [one["mode"] for one in found["points"][1:13]] == [mode.name for mode in ALL]
    model = found["model"]
    assert {size for sizes in model["exchanged_bytes"].values() for size in sizes.values()} == {
        1000
    }
    assert [one["error"] for one in model["errors"]] == pytest.approx([0] * 24, abs=1e-3)
    assert list(model["latency_seconds"].values())[:6] == pytest.approx([1e-5] * 6)
    assert [one["hosts"] for one in model["predicted"]] == [8, 16, 32, 64, 128, 256]
    ElementTree.parse(tmp_path / "scaling.svg")


def test_an_unknown_mode_is_wrong_usage(shell: Shell, said: Said) -> None:
    said(shell("bench scaling --modes impi-fp16-whole", 2).err)


def test_each_point_is_as_fast_as_with_the_tokens_of_the_first() -> None:
    first = point("a", 1, 10.0, (0.0,))
    longer = replace(point("b", 2, 14.0, (2.0, 4.0)), tokens=2 * first.tokens)
    found = document("mrpc", "native", 30, [first, longer])["points"][1]
    assert found["samples_per_second"] == round(16 / (3 + 11 / 2), 3)


def point(run: str, hosts: int, seconds: float, waited: tuple[float, ...]) -> Point:
    sent = 2e8 * (hosts - 1) / hosts
    mode = Mode("impi", "fp32", "whole")
    return Point(
        run, mode, hosts, hosts, 30 * hosts, 8 * hosts, seconds, 1000.0, waited, sent,
        1e-3 * (hosts - 1), 10**8, "node1", 3600,
    )  # fmt: skip


def test_the_table(said: Said) -> None:
    points = [
        point("a", 1, 0.1, (0.0,)),
        point("b", 2, 0.105, (0.006, 0.004)),
        point("c", 4, 0.108, (0.01, 0.005, 0.009, 0.008)),
    ]
    said("\n".join(lines(document("mrpc", "native", 30, points))))
