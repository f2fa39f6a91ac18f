"""The command `sweep` without the trainings themselves."""

import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest

import ftcluster
from ftcluster.ansible.playbook import PlaybookOutcome
from ftcluster.cluster.saved import Cluster, remember
from ftcluster.errors import Detached, FtclusterError
from ftcluster.launch import follow, training_run
from ftcluster.launch.run import Followed
from ftcluster.launch.run_hosts import RunHosts
from ftcluster.launch.training_run import TrainingRun
from ftcluster.operations.runs.report import ReportRequest
from ftcluster.operations.search import sweep
from ftcluster.operations.search.sweep_result import SweepResult
from ftcluster.operations.train import prepare
from ftcluster.progress.state import RunProgress
from ftcluster.recipe.recipe import load_recipe
from ftcluster.search.rows import Aim, SweepRun
from ftcluster_common.protocol.run_state import INTERRUPTED, RunState
from tests.programs import ROOT
from tests.unit.clusters import STACKS, cluster, host
from tests.unit.shell import Said, Shell

RATES = "learning_rate=1e-5,2e-5,5e-5"
WORDS = ("sweep", "quickstart", RATES, "batch_size=16,32")


class Hosts:
    """Hosts with runs whose loss is lowest for a rate of 2e-5 and a batch of 32."""

    def __init__(self) -> None:
        self.runs: dict[str, tuple[TrainingRun, RunState]] = {}
        self.launched: list[TrainingRun] = []
        self.polls = 0
        self.broken: dict[float, str | float] = {}  # by rate: an error, or the loss
        self.refused: dict[str, int] = {}  # launches that a head refuses

    def train(self, run: TrainingRun, *_: Any, detach: bool) -> RunProgress:
        names = tuple(one.name for one in run.plan.hosts)
        busy = [one for _, one in self.runs.values() if one.state == "running"]
        assert detach
        assert not [one for one in busy if {*one.hosts} & {*names}]
        if self.refused.get(names[0], 0):
            self.refused[names[0]] -= 1
            raise FtclusterError("another run uses it")
        self.launched.append(run)
        self.runs[run.id] = (
            run, RunState(run.id, "running", "x", names, 1, 0, 9, len(self.runs), 1.0, ""),
        )  # fmt: skip
        return RunProgress(run.id)

    def list_runs(
        self, there: RunHosts, beginnings: Sequence[str], most: int = 0
    ) -> tuple[list[RunState], int]:
        self.polls += most
        found = [one for _, one in self.runs.values() if one.hosts[:1] == (there.head,)]
        found = [one for one in found if one.run.startswith(tuple(beginnings))]
        for one in found if self.polls % 3 == 0 and most else ():
            self.ends(one.run)
        return [self.runs[one.run][1] for one in found], 0

    def ends(self, run: str) -> None:
        training, state = self.runs[run]
        failed = isinstance(self.broken.get(training.recipe.training.learning_rate), str)
        new = replace(state, state="failed" if failed else "done", doing="", model=f"/{run}/model")
        self.runs[run] = (training, new)

    def attach(self, there: RunHosts, run: str, *_: Any) -> Followed:
        assert self.runs[run][1].hosts[0] == there.head
        if self.runs[run][1].state == "running" or self.runs[run][1].doing:
            self.ends(run)
        recipe, state = self.runs[run][0].recipe, self.runs[run][1]
        rate = recipe.training.learning_rate
        loss = self.broken.get(rate, abs(math.log(rate / 2e-5)) + 16 / recipe.batch_size)
        progress = RunProgress(run)
        if state.state == "done":
            metrics = {"loss": loss, "accuracy": 0.5}
            progress.add({"event": "result", "metrics": metrics, "model": state.model,
                          "samples_per_second": 10.0})  # fmt: skip
        else:
            progress.add(
                {"event": "error", "message": str(loss), "hint": "", "rank": 0, "host": ""}
            )
        progress.add({"event": "end", "state": state.state, "seconds": 60.0, "exit_code": 0})
        return Followed(progress, PlaybookOutcome("done", ()))


@pytest.fixture(autouse=True)
def hosts(monkeypatch: pytest.MonkeyPatch) -> Hosts:
    found = Hosts()
    monkeypatch.setattr(training_run, "train", found.train)
    monkeypatch.setattr(follow, "attach", found.attach)
    monkeypatch.setattr(sweep, "list_runs", found.list_runs)
    monkeypatch.setattr(sweep, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(prepare, "load_stacks", lambda: STACKS)
    of_three("xeon1")
    return found


def of_three(*names: str) -> None:
    hosts = (host(name, cores=8) for name in names)
    remember(Cluster((Path("/inventory.ini"),), cluster(*hosts)))


def test_each_combination_is_trained_once(shell: Shell, hosts: Hosts) -> None:
    found = shell([*WORDS, "--json"]).document
    assert (found["state"], found["metric"], found["greater_is_better"]) == ("done", "loss", False)
    assert found["best_settings"] == {"learning_rate": "2e-5", "batch_size": "32"}
    assert [run.recipe.training.learning_rate for run in hosts.launched] == [
        1e-5, 1e-5, 2e-5, 2e-5, 5e-5, 5e-5,
    ]  # fmt: skip
    assert hosts.launched[0].launch.env["FTCLUSTER_TAGS"] == "learning_rate=1e-5 batch_size=16"
    assert shell([*WORDS, "--json"]).document == found
    tried = {"learning_rate": [1e-5, 2e-5, 5e-5], "batch_size": [16, 32]}
    by_python = ftcluster.sweep("quickstart", tried)
    assert by_python.best
    assert by_python.best.run == found["best"]
    # additional values are trained too
    more = shell(["sweep", "quickstart", f"{RATES},1e-4", "batch_size=32", "--json"]).document
    assert (len(hosts.launched), len(more["runs"])) == (7, 4)
    assert more["best"] == found["best"]


def test_all_folds_of_each_combination_are_trained(
    shell: Shell, hosts: Hosts, tmp_path: Path
) -> None:
    rows = [{"text": f"text {n}", "label": n % 2} for n in range(30)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = ("sweep", "quickstart", "text_columns=text", "--data", str(tmp_path / "rows.jsonl"))
    found = shell([*words, "folds=3", "batch_size=16,32", "--json"]).document
    assert [(run.recipe.batch_size, run.recipe.fold) for run in hosts.launched] == [
        (size, fold) for size in (16, 32) for fold in (1, 2, 3)
    ]
    best = found["settings"][0]
    assert (best["settings"], len(best["runs"])) == ({"batch_size": "32"}, 3)
    assert best["metrics"]["accuracy"] == {"mean": 0.5, "deviation": 0.0}
    rates = ("learning_rate=1e-5..1e-4", "folds=3")
    shell([*words, *rates, "--random", "2", "--json"])
    drawn = [(run.recipe.training.learning_rate, run.recipe.fold) for run in hosts.launched[6:]]
    assert sorted(drawn) == [(r, f) for r in sorted({r for r, _ in drawn}) for f in (1, 2, 3)]
    assert len(drawn) == 6
    assert "not folds" in shell([*words, *rates, "--tpe", "2"], code=2).err
    some = shell([*words, "folds=3", "fold=1,3", "--dry-run", "--json"]).document
    assert [run["settings"] for run in some["runs"]] == [{"fold": "1"}, {"fold": "3"}]


def test_another_control_node_finds_them(
    shell: Shell, hosts: Hosts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = shell([*WORDS, "--json"]).document
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    of_three("xeon1")
    assert shell([*WORDS, "--json"]).document == found
    assert len(hosts.launched) == 6


def test_tpe_tries_what_optuna_alone_would(
    shell: Shell, hosts: Hosts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another control node may continue the search; a failed run has no value for the metric."""

    def loss(trial: optuna.Trial) -> float:
        rate = float(f"{trial.suggest_float('learning_rate', 1e-5, 1e-4, log=True):.3g}")
        size = int(trial.suggest_categorical("batch_size", ("16", "32")))
        tried.append((rate, size))
        if 2e-5 < rate < 3e-5:
            hosts.broken[rate] = "no"
            raise ValueError
        return abs(math.log(rate / 2e-5)) + 16 / size

    tried: list[tuple[float, int]] = []
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=5))
    study.optimize(loss, n_trials=16, catch=(ValueError,))
    words = ["sweep", "quickstart", "learning_rate=1e-5..1e-4", "batch_size=16,32", "--seed", "5"]
    shell([*words, "--tpe", "12", "--json"])
    assert len(hosts.launched) == len(dict.fromkeys(tried[:12]))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    of_three("xeon1")
    found = shell([*words, "--tpe", "16", "--json"]).document
    launched = [
        (run.recipe.training.learning_rate, run.recipe.batch_size) for run in hosts.launched
    ]
    assert launched == list(dict.fromkeys(tried))
    assert {run["state"] for run in found["runs"]} == {"done", "failed"}
    best = study.best_params
    assert found["best_settings"]["batch_size"] == best["batch_size"]
    assert float(found["best_settings"]["learning_rate"]) == pytest.approx(
        best["learning_rate"], rel=0.01
    )


def test_tpe_chooses_as_many_at_once_as_run_side_by_side(shell: Shell, hosts: Hosts) -> None:
    of_three("xeon1", "xeon2", "xeon3")
    words = ["sweep", "quickstart", "learning_rate=1e-5..1e-4", "--nodes", "1", "--tpe", "7"]
    found = shell([*words, "--metric", "accuracy", "--json"]).document
    assert (found["state"], len(found["runs"])) == ("done", 7)
    assert {run.plan.hosts[0].name for run in hosts.launched} == {"xeon1", "xeon2", "xeon3"}
    assert shell([*words, "--metric", "accuracy", "--json"]).document == found


def test_without_optuna(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    said = shell("sweep quickstart learning_rate=1e-5..1e-4 --tpe 3", 1).err
    assert "--tpe needs the package optuna" in said
    assert "-m pip install 'optuna>=5,<6'" in said
    assert shell("sweep quickstart learning_rate=1e-5,1e-4 --tpe 3 --random 3", 2).err


def test_one_that_fails_ends_no_other(shell: Shell, hosts: Hosts, said: Said) -> None:
    hosts.broken = {1e-5: "the loss is not finite at step 3", 5e-5: math.nan}
    found = shell(["sweep", "quickstart", RATES, "--json"]).document
    assert [one["state"] for one in found["runs"]] == ["failed", "done", "diverged"]
    assert found["best_settings"] == {"learning_rate": "2e-5"}
    text = shell(["sweep", "quickstart", RATES]).out
    for number, run in enumerate(hosts.launched):
        text = text.replace(run.id, f"RUN-{number}")
    said(text)
    hosts.broken = {}
    assert shell(["sweep", "quickstart", RATES, "--retry", "--json"]).document["state"] == "done"
    rates = [run.recipe.training.learning_rate for run in hosts.launched]
    # the run with NaN is not repeated, because it would give the same result
    assert rates == [1e-5, 2e-5, 5e-5, 1e-5]


def test_side_by_side_on_parts_of_the_cluster(shell: Shell, hosts: Hosts) -> None:
    of_three("xeon1", "xeon2", "xeon3")
    found = shell([*WORDS, "--nodes", "1", "--json"]).document
    assert found["state"] == "done"
    used = [one["hosts"] for one in found["runs"]]
    assert {*map(tuple, used)} == {("xeon1",), ("xeon2",), ("xeon3",)}
    assert len(hosts.launched) == 6
    with_two = shell(["sweep", "quickstart", RATES, "--nodes", "2", "--json"]).document
    assert [one["hosts"] for one in with_two["runs"]] == 3 * [["xeon1", "xeon2"]]
    shell([*WORDS, "--nodes", "4"], 1)


def test_hosts_that_take_no_run_are_left_out(shell: Shell, hosts: Hosts) -> None:
    of_three("xeon1", "xeon2")
    hosts.refused = {"xeon2": 99}
    found = shell([*WORDS, "--nodes", "1", "--json"], 1).document
    states = [one["state"] for one in found["runs"]]
    assert (states.count("not started"), states.count("done")) == (3, 3)
    hosts.refused = {}
    assert shell([*WORDS, "--nodes", "1", "--json"]).document["state"] == "done"


def test_ctrl_c_leaves_the_runs_and_the_same_command_goes_on(
    shell: Shell, hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attach(_: RunHosts, run: str, *__: Any) -> Followed:
        raise Detached(run, 2, {})

    with monkeypatch.context() as patch:
        patch.setattr(follow, "attach", attach)
        left = shell([*WORDS, "--json"], 130)
    assert hosts.launched[0].id in left.err
    assert [one["state"] for one in left.document["runs"]] == ["running"] + 5 * ["waiting"]
    # the host was off meanwhile
    run, state = hosts.runs[hosts.launched[0].id]
    hosts.runs[run.id] = (run, replace(state, state="failed", doing=INTERRUPTED))
    assert shell([*WORDS, "--json"]).document["state"] == "done"
    assert len(hosts.launched) == 6
    # a run that was stopped before its first step does not count
    run, state = hosts.runs[hosts.launched[0].id]
    hosts.runs[run.id] = (run, replace(state, state="stopped", step=0))
    shell(WORDS)
    assert len(hosts.launched) == 7


def test_the_end_of_the_whole_sweep_is_one_notification(
    shell: Shell, hosts: Hosts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    received = tmp_path / "received"
    command = [*WORDS, "--json", "--notify", f"/usr/bin/tee -a {received}"]
    result = shell(command).document
    [document] = map(json.loads, received.read_text().splitlines())
    best = f"learning_rate=2e-5 batch_size=32 ({result['best']})"
    text = f"the sweep of quickstart is done: best loss 0.5, {best}"
    assert document == {"event": "done", **result, "text": text}
    assert not any(run.launch.notify for run in hosts.launched)
    # an error that ends the sweep, with a webhook that does not respond
    received.unlink()
    webhook = tmp_path / "webhook"
    webhook.write_text("http://127.0.0.1:1/s3cret")
    monkeypatch.setenv("FTCLUSTER_WEBHOOK", str(webhook))
    monkeypatch.setattr(sweep, "report", refused)
    failed = shell([*command, "--report", str(tmp_path / "r.html")], 1)
    [document] = map(json.loads, received.read_text().splitlines())
    assert (document["event"], document["error"]) == ("failed", "the disk is full")
    assert len(document["runs"]) == 6
    assert "--webhook: the notification failed: the server cannot be reached" in failed.err
    # the webhook's file disappears during the sweep, and the command fails: both are only notes
    received.unlink()
    monkeypatch.setattr(sweep, "report", lambda *_: webhook.unlink())
    hook = ["--notify", "/usr/bin/false", "--report", str(tmp_path / "r.html")]
    done = shell([*WORDS, "--json", *hook])
    assert done.document["state"] == "done"
    assert "--notify: the notification failed: exit code 1" in done.err
    assert "--webhook: the notification failed: the server cannot be reached" in done.err
    assert "s3cret" not in done.err + done.out
    monkeypatch.delenv("FTCLUSTER_WEBHOOK")
    # Ctrl-C notifies nobody: the user is here
    monkeypatch.setattr(sweep, "report", interrupted)
    shell([*command, "--report", str(tmp_path / "r.html")], 130)
    assert not received.exists()


def refused(*_: Any) -> None:
    raise FtclusterError("the disk is full")


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def test_all_runs_are_checked_before_the_first(shell: Shell, hosts: Hosts, said: Said) -> None:
    words = ["sweep", "quickstart", "batch_size=16,0", "learning_rate=1e-5,-1"]
    said(re.sub(r"\S+/quickstart.yml", "quickstart.yml", shell(words, 2).err))
    assert "needs a field with several values" in shell("sweep quickstart batch_size=8", 2).err
    shell([*WORDS, "--metric", "f2"], 2)
    found = shell([*WORDS, "--dry-run", "--json"]).document
    assert [one["state"] for one in found["runs"]] == 6 * ["waiting"]
    assert found["state"] == "planned"
    assert "not empty" in shell([*WORDS, "--fetch", str(ROOT)], 1).err
    assert hosts.launched == []
    drawn = ["--random", "4", "--seed", "3", "learning_rate=1e-5..1e-4", "--dry-run", "--json"]
    assert len(shell(["sweep", "quickstart", *drawn]).document["runs"]) == 4


def test_other_data_are_other_runs(shell: Shell, hosts: Hosts, tmp_path: Path) -> None:
    data = tmp_path / "rows.csv"
    words = ["sweep", "classify", "--data", str(data), RATES]
    data.write_text("text,label\na b,x\nc d,y\n")
    shell(words)
    moved = data.rename(tmp_path / "moved.csv")
    moved.rename(data)
    shell(words)
    assert len(hosts.launched) == 3
    data.write_text("text,label\na b,x\nc d,z\n")
    shell(words)
    assert len(hosts.launched) == 6


def test_the_best_is_brought_here(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    brought: list[tuple[str, str, Path]] = []
    monkeypatch.setattr(sweep, "fetch_model", lambda _, *given: brought.append(given))
    reported: list[ReportRequest] = []
    monkeypatch.setattr(sweep, "report", lambda request, _: reported.append(request))
    target, page = tmp_path / "best", tmp_path / "page.html"
    words = [*WORDS, "--fetch", str(target), "--report", str(page), "--metric", "loss"]
    found = shell([*words, "--json"]).document
    assert brought == [(found["best"], f"/{found['best']}/model", target)]
    assert (found["fetched"], found["report"]) == (str(target), str(page))
    assert {*reported[0].runs} == {one["run"] for one in found["runs"]}
    assert reported[0].runs[0] == found["best"]


@pytest.mark.parametrize(
    ("aim", "best"),
    [(Aim("accuracy"), 1), (Aim("perplexity"), 0), (Aim("loss_matched"), 0),
     (Aim("accuracy", greater=False), 0), (Aim(), 0), (Aim("none"), None)],
)  # fmt: skip
def test_which_one_is_best(aim: Aim, best: int | None) -> None:
    names = ("accuracy", "perplexity", "loss_matched", "loss")
    rows = [
        SweepRun({}, state="done", metrics={f"eval_{name}": value for name in names})
        for value in (1.0, 2.0, 2.0)
    ]
    result = SweepResult([*rows, SweepRun({}, state="failed")], aim)
    assert result.best is (None if best is None else rows[best])
    best = ["metric_for_best_model=eval_f1", "save_strategy=best"]
    recipe = load_recipe("mrpc", best)
    assert sweep.aim_of(recipe, "", ["learning_rate"]) == Aim("f1")


DISTILLED, TUNED = ("accuracy", "f1_macro", "agreement"), ("accuracy", "margin")


@pytest.mark.parametrize(
    ("recipe", "asked", "fields", "aim"),
    [
        ("distill", "", ["learning_rate"], Aim()),
        ("distill", "", ["learning_rate", "options.temperature"], Aim(others=DISTILLED)),
        ("distill", "", ["alpha", "teacher"], Aim(others=DISTILLED[:2])),
        ("distill", "eval_loss", ["alpha"], Aim("loss")),
        ("dpo", "", ["training.label_smoothing_factor"], Aim(others=TUNED)),
        ("dpo", "", ["beta"], Aim(others=TUNED[:1])),
        ("sft", "", ["label_smoothing_factor"], Aim()),  # evaluations have no label smoothing
        ("mlm", "perplexity", ["mlm_probability"], Aim("perplexity")),
    ],
)
def test_losses_that_a_field_scales_are_not_compared(
    recipe: str, asked: str, fields: list[str], aim: Aim
) -> None:
    given = load_recipe(recipe, [])
    assert sweep.aim_of(given, asked, fields) == aim
    training = replace(given.training, metric_for_best_model="loss")
    wanted = Aim("loss") if aim == Aim() else aim
    assert sweep.aim_of(replace(given, training=training), asked, fields) == wanted


def test_the_first_other_metric_that_is_measured_is_compared() -> None:
    """A distilled classifier without labels has no accuracy."""
    rows = [
        SweepRun({}, state="done", metrics={"agreement": value, "loss": 1 - value})
        for value in (0.9, 0.5)
    ]
    result = SweepResult(rows, Aim(others=DISTILLED))
    assert (result.metric, result.best) == ("agreement", rows[0])


def test_a_sweep_without_anything_to_compare_is_refused(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("a b\n")
    words = ["sweep", "mlm", "--data", str(tmp_path / "texts.txt"), "mlm_probability=0.15,0.3"]
    refused = shell([*words, "--dry-run"], 2).err
    assert "loss, perplexity depend on mlm_probability" in refused
    assert "--metric loss" in refused
    shell([*words, "--dry-run", "--metric", "loss"])
