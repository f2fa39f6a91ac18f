"""The command `tune` without the trainings, and the use of its result in plans."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftcluster.cluster.saved import Cluster, recall, remember
from ftcluster.errors import Interrupted
from ftcluster.launch import training_run
from ftcluster.launch.training_run import TrainingRun
from ftcluster.operations.search import tune
from ftcluster.operations.train import prepare
from ftcluster.operations.train.prepare import RecipeRequest
from ftcluster.progress.state import RunProgress
from tests.unit.clusters import STACKS, VM, cluster, host
from tests.unit.shell import Said, Shell

WORDS = (
    "quickstart", "ranks_per_host=null", "training.ddp_backend=impi",
    "training.ddp_bucket_cap_mb=25",
)  # fmt: skip
FOUR = host("xeon1", cores=4)


@pytest.fixture(autouse=True)
def trained(monkeypatch: pytest.MonkeyPatch, head: Path) -> list[TrainingRun]:
    """Record the launched trainings: a sample takes a rank 0.1 s, or a tenth less with libc."""
    assert not head.exists()
    runs: list[TrainingRun] = []
    now = [0.0]

    def train(
        run: TrainingRun, *_: Any, on_event: Callable[[dict[str, Any]], None], **__: Any
    ) -> RunProgress:
        runs.append(run)
        settings = run.recipe.training
        faster = 1.0 if run.plan.hosts[0].allocator else 0.9
        seconds = 0.1 * faster * run.recipe.batch_size / run.plan.world_size
        for step in (settings.logging_steps, settings.max_steps):
            of_ranks = {"waited_seconds": [0.0], "sent_bytes": 0, "collectives": 0}
            on_event({"event": "communication", "step": step, "tokens": step, "latency_seconds": 0,
                      "train_seconds": step * seconds, **of_ranks})  # fmt: skip
        now[0] += 10 + settings.max_steps * seconds
        return RunProgress(run.id)

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return now[0]

    monkeypatch.setattr(training_run, "train", train)
    monkeypatch.setattr(prepare, "load_stacks", lambda: STACKS)  # each trial would read the stacks
    monkeypatch.setattr(tune, "time", Clock)
    monkeypatch.setattr(tune, "clean_runs", lambda _, ids: list(ids))
    remember(Cluster((Path("/inventory.ini"),), cluster(FOUR)))
    return runs


def tuned(shell: Shell, *words: str) -> Any:
    return shell(["tune", "--json", *WORDS, "--budget", "1h", *words]).document


def decisions(*words: str, ranks_per_host: int | None = None) -> dict[str, tuple[str, str]]:
    request = RecipeRequest(WORDS, ranks_per_host=ranks_per_host, chosen=words)
    run = request.prepared(recall())
    return {one.what: (one.value, one.why) for one in run.plan.decisions}


def test_what_is_fixed_is_not_tried(shell: Shell) -> None:
    found = tuned(shell, "--ranks-per-host", "1", "allocator=tcmalloc")
    assert (found["settings"], found["trials"][1:]) == ({}, [])
    assert not recall().tunings


def test_on_other_hosts_it_is_not_used_and_the_plan_says_why(shell: Shell, said: Said) -> None:
    tuned(shell)
    for other in (replace(FOUR, stack="intel-2.8"), host("xeon2", cores=4)):
        remember(replace(recall(), facts=cluster(other)))
        value, why = decisions()["tuning"]
        said(f"{value}: {why}".replace(recall().tunings[0].date, "DATE"))


def test_a_default_that_is_the_fastest_is_known_too(shell: Shell) -> None:
    remember(Cluster((Path("/inventory.ini"),), cluster(replace(VM, tcmalloc=""))))
    words = ["tune", "--json", "quickstart", "--budget", "1h"]
    found = shell(words).document
    assert (found["settings"], found["speed_up"]) == ({}, None)


def test_a_larger_batch_only_if_asked(shell: Shell) -> None:
    assert not any("batch_size" in one["settings"] for one in tuned(shell)["trials"])
    assert any("batch_size" in one["settings"] for one in tuned(shell, "--batch")["trials"])


def test_the_winner_is_used_for_the_same_training(shell: Shell, trained: list[TrainingRun]) -> None:
    assert tuned(shell, "--dry-run")["trials"][0] == {"ranks_per_host": 2}
    assert trained == []
    assert "tuning" not in decisions()
    found = tuned(shell)
    assert found["settings"] == {"ranks_per_host": 4, "allocator": "libc"}
    assert found["speed_up"] == pytest.approx(4 / 0.9, rel=1e-3)
    assert {run.recipe.training.eval_strategy for run in trained} == {"no"}
    used = decisions("learning_rate=1e-3", "num_train_epochs=9")
    assert used["ranks"][0] == "4"
    assert used["allocator"][0] == "libc's"
    assert used["ranks"][1] == used["allocator"][1]
    assert used["tuning"][0].startswith("4.44 x")
    assert RecipeRequest((*WORDS,)).prepared(recall()).plan.hosts[0].allocator == ""
    # the user's settings have precedence over tuned settings
    assert "tuning" not in decisions("training.ddp_backend=auto")
    assert "tuning" not in decisions("batch_size=64")
    assert decisions(ranks_per_host=2)["ranks"][0] == "2"
    # a forgotten tuning is not used
    forget = ["tune", "--forget", "--json", *WORDS]
    assert len(shell([*forget, "learning_rate=1e-3"]).document["forgotten"]) == 1
    assert "tuning" not in decisions()
    assert shell(forget).document["forgotten"] == []


def test_a_stopped_search_says_what_is_known(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, count = training_run.train, 0

    def train(*given: Any, **more: Any) -> RunProgress:
        nonlocal count
        count += 1
        if count == 4:
            raise Interrupted("stopped: run x")
        return usual(*given, **more)

    monkeypatch.setattr(training_run, "train", train)
    found = shell(["tune", "--json", *WORDS], 130).document
    assert (found["state"], len(found["trials"]), found["settings"]) == ("stopped", 2, {})
    assert not recall().tunings


def test_what_one_control_node_has_found_is_used_by_all(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, head: Path
) -> None:
    tuned(shell)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    remember(
        Cluster((Path("/inventory.ini"),), cluster(FOUR)).with_record(head.read_text().strip())
    )
    assert decisions()["tuning"][0].startswith("4.44 x")


def test_what_the_head_refuses_is_shown_all_the_same(shell: Shell, head: Path) -> None:
    head.write_text("{")
    assert "not saved" in shell(["tune", *WORDS, "--budget", "1h"]).out
