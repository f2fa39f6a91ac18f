"""A job that one side writes is readable by the other side."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from ftcluster.ansible.playbook import PlaybookOutcome
from ftcluster.cluster.saved import Cluster
from ftcluster.errors import FtclusterError
from ftcluster.launch import training_run
from ftcluster.launch.mpirun import render
from ftcluster.launch.run import Followed
from ftcluster.launch.training_run import TrainingRun
from ftcluster.planning.plan import plan
from ftcluster.progress.state import RunProgress
from ftcluster.recipe.recipe import known_recipes, load_recipe
from ftcluster_common.protocol.job import EVALUATE, Job, Purpose, read_job
from tests.unit.clusters import STACKS, VM, cluster, host


def written_and_read(
    folder: Path, stack: str, *overrides: str, recipe_name: str = "quickstart"
) -> Job:
    facts = cluster(host("node0", stack=stack))
    recipe = load_recipe(recipe_name, overrides)
    decided = plan(facts, recipe, STACKS)
    where = Cluster((Path("/i.ini"),), facts)
    run = TrainingRun("r-1", where, decided, render(decided, "r-1"), recipe)
    (folder / "job.json").write_text(json.dumps(run.job))
    return read_job(folder)


@pytest.mark.parametrize("name", sorted(known_recipes()))
def test_every_field_of_a_recipe_arrives(tmp_path: Path, name: str) -> None:
    job = written_and_read(tmp_path, "native", recipe_name=name)
    assert asdict(job.recipe) == asdict(load_recipe(name))
    assert (job.run, job.prefix, job.run_dir) == ("r-1", Path(VM.prefix), tmp_path)
    assert (job.precision, job.ipex) == ("bf16", False)


def test_ipex_as_the_plan_decided(tmp_path: Path) -> None:
    assert written_and_read(tmp_path, "intel-2.8").ipex is True
    job = written_and_read(tmp_path, "intel-2.8", "training.use_ipex=false")
    assert (job.ipex, job.recipe.training.use_ipex) == (False, False)


def test_samples_are_logged_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert written_and_read(tmp_path, "native").log_samples is False
    monkeypatch.setenv("FTCLUSTER_LOG_SAMPLES", "1")
    assert written_and_read(tmp_path, "native").log_samples is True


@pytest.mark.parametrize(
    ("purpose", "told", "missing"),
    [
        ("train", {}, "no start and no result"), ("train", {"result": {"model": ""}}, "no start"),
        (EVALUATE, {"start": {"steps": 1}}, "no result"), (EVALUATE, {"result": {"a": 1}}, ""),
    ],
)  # fmt: skip
def test_a_run_is_not_done_by_its_word_alone(
    monkeypatch: pytest.MonkeyPatch, purpose: Purpose, told: dict[str, Any], missing: str
) -> None:
    facts, recipe = cluster(VM), load_recipe("quickstart")
    decided = plan(facts, recipe, STACKS)
    where = Cluster((Path("/i.ini"),), facts)
    run = TrainingRun("r-1", where, decided, render(decided, "r-1"), recipe, purpose=purpose)
    progress = RunProgress("r-1", state="done", **told)
    followed = Followed(progress, PlaybookOutcome("done", ""))
    monkeypatch.setattr(training_run, "launch_and_follow", lambda *_, **__: followed)
    view: Any = None
    if not missing:
        assert training_run.train(run, view) is progress
        return
    with pytest.raises(FtclusterError, match=f"r-1 is done, but its events contain {missing}\n"):
        training_run.train(run, view)
