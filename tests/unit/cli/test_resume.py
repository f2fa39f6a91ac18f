"""`train --resume`: the options of the launch, and the skipped hosts."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftcluster.ansible.playbooks import Launched, RunEvents, RunFolder
from ftcluster.cli.main import main
from ftcluster.cluster.record import Drained
from ftcluster.cluster.saved import Cluster, remember
from ftcluster.errors import UsageError
from ftcluster.launch import follow, runs, training_run
from ftcluster.launch.kept_options import DEFAULTS, KeptOptions, kept_options_of
from ftcluster.launch.record import begin_record
from ftcluster.launch.training_run import HeadLost, TrainingRun
from ftcluster.operations.train.prepare import LaunchOptions
from ftcluster.operations.train.resume import HostCounts, with_kept_options
from ftcluster.recipe.recipe import load_recipe
from ftcluster_train.supervisor.runs import find_jobs
from tests.unit.clusters import cluster, host
from tests.unit.shell import Shell

NAMES = ("xeon1", "xeon2", "xeon3", "xeon4")
THESE = cluster(*(host(name) for name in NAMES))
AT = RunFolder("xeon1", "", "/opt/ftcluster/current", "/opt/ftcluster/runs", "", "")
RECIPE = load_recipe("quickstart")


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[TrainingRun]:
    """Record the launched trainings on hosts whose runs are in folders of this machine.

    Only the connection to the hosts is replaced: the host's own program reads the documents.
    """
    remember(Cluster((Path("/inventory.ini"),), THESE))
    trainings: list[TrainingRun] = []

    def train(run: TrainingRun, *_: object) -> None:
        trainings.append(run)
        begin_record(run.id, follow._record(run))
        for prepared in run.plan.prepared:
            folder = tmp_path / prepared.name / run.id
            (folder / "snapshots" / "1-1").mkdir(parents=True)
            (folder / "snapshots" / "1-1" / "manifest.json").touch()
            (folder / "job.json").write_text(json.dumps(run.job))
            events = RunEvents(AT, "")
            playbook = run.playbook(events, Launched({}, {}, False, "", "", 1, [], {}))
            options = playbook.variables()["train_options"]
            (folder / "options.json").write_text(json.dumps(options))
        raise HeadLost("the head is lost")

    monkeypatch.setattr(training_run, "train", train)
    return trainings


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Set the hosts that respond."""

    def respond(*names: str) -> None:
        def play(playbook: Any, *_: object, **__: object) -> dict[str, Any]:
            run = playbook.at.train_run
            return {name: find_jobs(tmp_path / name, run) for name in names}

        monkeypatch.setattr(runs, "play", play)

    respond(*NAMES)
    return respond


@pytest.mark.usefixtures("answering")
def test_a_resumed_run_has_the_options_of_the_launch(
    launched: list[TrainingRun], shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OWN_KEY", "secret")
    words = (
        "--nodes 2 --spares 1 --ranks-per-host 1 --tag team=nlp --tag ticket=42 --env OWN_KEY "
        "--env MODE=a --timeout 20 --max-restarts 5 --min-nodes 1 --grace-seconds 90 --wait"
    )
    shell(f"train quickstart {words}", 1)
    [first] = launched
    again = shell(f"train --resume {first.id}", 1)
    second = launched[-1]
    names = ("max_restarts", "min_nodes", "timeout_seconds", "grace_seconds", "wait",
             "share_hosts", "spares", "hang_seconds")  # fmt: skip
    for name in names:
        assert getattr(second.launch, name) == getattr(first.launch, name), name
    assert [one.name for one in second.launch.hosts] == ["xeon1", "xeon2"]
    assert [len(one.ranks) for one in second.launch.hosts] == [1, 1]
    for name in ("FTCLUSTER_TAGS", "MODE"):
        assert second.launch.env[name] == first.launch.env[name], name
    assert second.secrets == {"OWN_KEY": "secret"}
    assert second.kept == first.kept  # also for a run that continues this run
    assert "--ranks-per-host 1" in again.err  # the kept options are shown
    assert "secret" not in again.err
    # an option of this command has precedence; other options are kept
    changed = f"--resume {first.id} --tag ticket=43 --ranks-per-host 2 --share-hosts --spares 0"
    shell(f"train {changed} --env MODE=b", 1)
    third = launched[-1]
    assert third.launch.env["FTCLUSTER_TAGS"] == "team=nlp ticket=43"
    assert third.launch.env["MODE"] == "b"
    assert [len(one.ranks) for one in third.launch.hosts] == [2, 2]
    assert (third.launch.wait, third.launch.share_hosts, third.launch.spares) == (False, True, 0)


def test_a_resumed_run_names_each_host_that_it_leaves_out(
    launched: list[TrainingRun], answering: Callable[..., None], shell: Shell
) -> None:
    main(["train", "quickstart"])
    [first] = launched
    drained = {"xeon2": Drained("bad memory", "2026-11-23")}
    record = json.dumps({"format": 1, "drained": {"xeon2": vars(drained["xeon2"])}})
    without_last = cluster(*THESE.hosts[:3])  # xeon4 was removed
    saved = Cluster((Path("/inventory.ini"),), without_last).with_record(record)
    remember(saved)
    answering("xeon1", "xeon2")
    notes = [line for line in shell(f"train --resume {first.id}", 1).err.splitlines()
             if "is not used: it" in line]  # fmt: skip
    assert len(notes) == 3
    reasons = {
        "xeon2": ("bad memory, since 2026-11-23", "ftcluster hosts return xeon2"),
        "xeon3": ("does not respond", "ftcluster check"),
        "xeon4": ("no longer a host of the cluster", "ftcluster hosts add xeon4"),
    }
    for name, parts in reasons.items():
        [note] = [line for line in notes if f" {name} is not used: it" in line]
        for part in parts:
            assert part in note
    assert [one.name for one in launched[-1].launch.hosts] == ["xeon1"]
    refused = shell(f"train --resume {first.id} --nodes 3", 1).err
    for parts in reasons.values():
        assert parts[0] in refused
        assert parts[1] in refused


def test_a_refused_number_of_hosts_names_the_drained_host(shell: Shell) -> None:
    drained = json.dumps(
        {"format": 1, "drained": {"xeon2": {"why": "bad memory", "since": "2026-11-23"}}}
    )
    remember(Cluster((Path("/inventory.ini"),), THESE).with_record(drained))
    for command in ("train --nodes 4", "plan --nodes 4", "train --nodes 3 --spares 1"):
        code = 2 if "spares" in command else 1
        refused = shell(command, code).err
        assert "3 hosts" in refused
        assert "xeon2 is drained (bad memory, since 2026-11-23)" in refused
        assert "ftcluster hosts return xeon2" in refused


def test_values_of_variables_come_from_this_machine_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host must not choose the environment of other hosts' ranks."""
    kept = KeptOptions(env=("MODE",), secret_env=("OWN_KEY",))
    job = runs.FoundJob("r-1", RECIPE, NAMES, 4, options=kept)
    with pytest.raises(UsageError) as caught:
        with_kept_options(HostCounts(), LaunchOptions(), job, {})
    assert "--env MODE" in caught.value.message
    assert "--env OWN_KEY" in caught.value.message
    assert caught.value.exit_code == 2
    monkeypatch.setenv("OWN_KEY", "x")
    launch = LaunchOptions(env=("MODE=c",))
    _, launch, _ = with_kept_options(HostCounts(), launch, job, {"MODE": "a"})
    assert set(launch.env) == {"MODE=c", "OWN_KEY"}


def test_a_host_chooses_no_command_that_another_host_starts() -> None:
    """The options of a run record that somebody is notified, but not who."""
    job = runs.FoundJob("r-1", RECIPE, NAMES, 4, options=KeptOptions(notifies=True))
    _, launch, note = with_kept_options(HostCounts(), LaunchOptions(), job, {})
    assert (launch.notify, launch.webhook) == ("", "")
    assert note == "run r-1 used --notify or --webhook, which is not saved: pass it again"
    _, launch, note = with_kept_options(HostCounts(), LaunchOptions(notify="mail"), job, {})
    assert (launch.notify, note) == ("mail", "")


@pytest.mark.parametrize(
    "wrong",
    [{"spares": -1}, {"ranks_per_host": "2"}, {"wait": 1}, {"tags": ["x\ny"]}, {"env": ["a b"]},
     {"hosts": "xeon1"}, {"timeout_seconds": float("nan")}, {"format": 99}, [], None],
)  # fmt: skip
def test_options_of_a_host_are_checked(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r".+"):
        kept_options_of(wrong)


def test_options_survive_their_document() -> None:
    options = replace(
        DEFAULTS, hosts=NAMES, ranks_per_host=2, share_hosts=True, tags=("a=b",), env=("X",)
    )
    assert kept_options_of(json.loads(json.dumps(options.document()))) == options
    assert kept_options_of(DEFAULTS.document()) == DEFAULTS
