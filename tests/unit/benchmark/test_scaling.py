"""The command `bench scaling` but for the trainings themselves."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftcluster.benchmark.scaling import Point, document, lines
from ftcluster.cli import bench_scaling
from ftcluster.cli.main import main
from ftcluster.cluster.saved import Cluster, remember
from ftcluster.launch.training_run import TrainingRun
from ftcluster.progress.state import RunProgress
from tests.unit.clusters import VM, cluster, host

Said = Callable[[object], None]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[TrainingRun]:
    """The trainings that were launched; each rank trains 10 samples a second."""
    runs: list[TrainingRun] = []

    def train(run: TrainingRun, *_: Any) -> RunProgress:
        runs.append(run)
        return RunProgress(run.id, result={"samples_per_second": 10.0 * run.plan.world_size})

    monkeypatch.setattr(bench_scaling, "train", train)
    monkeypatch.setattr(bench_scaling, "clean_runs", lambda _, ids: list(ids))
    return runs


def bench(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["bench", "scaling", "--json", *words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_hosts(trained: list[TrainingRun], capsys: pytest.CaptureFixture[str]) -> None:
    hosts = cluster(*(host(f"node{number}", cores=16) for number in range(5)))
    remember(Cluster((Path("/inventory.ini"),), hosts))
    found = bench(capsys, "quickstart", "--steps", "7", "batch_size=40")
    assert [len(run.plan.hosts) for run in trained] == [1, 2, 4, 5]
    assert [run.recipe.batch_size for run in trained] == [8, 16, 32, 40]
    assert {run.recipe.training.max_steps for run in trained} == {7}
    assert [point["speed_up"] for point in found["points"]] == [1, 2, 4, 5]
    assert {point["efficiency"] for point in found["points"]} == {1}


def test_ranks_of_one_host(trained: list[TrainingRun], capsys: pytest.CaptureFixture[str]) -> None:
    remember(Cluster((Path("/inventory.ini"),), cluster(VM)))
    found = bench(capsys)
    assert [point["ranks"] for point in found["points"]] == [1, 2]
    assert [run.recipe.batch_size for run in trained] == [16, 32]
    # with two ranks each has one of the two cores
    assert [point["threads"] for point in found["points"]] == [2, 2]
    assert [point["efficiency"] for point in found["points"]] == [1, 2]


def test_the_table(said: Said) -> None:
    points = [Point("a", 1, 2, 30, 16, 100.0), Point("b", 4, 8, 120, 64, 368.0)]
    said("\n".join(lines(document("mrpc", "native", 30, points))))
