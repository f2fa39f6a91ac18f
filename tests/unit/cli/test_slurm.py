"""`ftcluster train` in a Slurm job, and `ftcluster export slurm`."""

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftcluster.cli.main import main
from ftcluster.cluster.saved import Cluster, remember
from ftcluster.cluster.slurm import Allocation
from ftcluster.errors import Interrupted
from ftcluster.launch import training_run
from ftcluster.launch.record import begin_record
from ftcluster.launch.run import Followed
from ftcluster.launch.runs import FoundJob
from ftcluster.launch.training_run import TrainingRun
from ftcluster.operations.train import slurm_job, train
from ftcluster.progress.state import RunProgress
from ftcluster.recipe.recipe import load_recipe
from ftcluster_common.protocol.slurm import Queued
from tests.unit.clusters import cluster, host
from tests.unit.shell import Shell

RECIPE = load_recipe("quickstart")
NODES = cluster(host("xeon1", connection="local"), host("xeon2", connection="local"))
WORDS = ("train", "quickstart", "training.seed=7")


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[TrainingRun]:
    """Record the trainings launched in a job; a signal stops each after 5 steps."""
    runs: list[TrainingRun] = []

    def stopped(run: TrainingRun, *_: object) -> None:
        runs.append(run)
        raise Interrupted("stopped", details={"steps": 5})

    in_job = Cluster((Path("localhost.ini"),), NODES, slurm_job="12")
    monkeypatch.setattr(training_run, "train", stopped)
    monkeypatch.setattr(train, "cluster_of_job", lambda _: in_job)
    monkeypatch.setattr(
        train, "find_job", lambda _, run, __: FoundJob(run, RECIPE, ("localhost",), 1)
    )
    monkeypatch.setattr("sys.argv", ["ftcluster", *WORDS])
    job(monkeypatch)
    return runs


def job(monkeypatch: pytest.MonkeyPatch, here: str = "xeon1", restarts: int = 0) -> None:
    found = Allocation("12", ("xeon1", "xeon2"), (4, 4), here, 1, restarts)
    monkeypatch.setattr(slurm_job, "allocation", lambda _: found)


def test_the_nodes_of_the_job_are_the_hosts(launched: list[TrainingRun]) -> None:
    assert main([*WORDS, "--grace-seconds", "90"]) == 130
    [run] = launched
    assert [one.name for one in run.launch.hosts] == ["xeon1", "xeon2"]
    assert (run.launch.slurm_job, run.launch.grace_seconds) == ("12", 90)
    assert run.job["shared_folder"]


def test_an_inventory_is_what_counts_where_one_is_given(
    launched: list[TrainingRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Cluster((Path("/inventory.ini"),), cluster(host("node0")))
    monkeypatch.setattr(train, "cluster_of", lambda *_: own)
    main([*WORDS, "-i", "inventory.ini"])
    assert [one.name for one in launched[0].launch.hosts] == ["node0"]
    assert launched[0].launch.slurm_job == ""


def test_a_requeued_job_continues_its_own_run_of_the_same_command(
    launched: list[TrainingRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["ftcluster", *WORDS]
    begin_record("r-1", {"slurm_job": "12", "command": command})
    begin_record("r-other-job", {"slurm_job": "13", "command": command})
    other = [*command, "training.seed=8"]
    begin_record("r-other-command", {"slurm_job": "12", "command": other})
    running = type("State", (), {"state": "running"})
    monkeypatch.setattr(train, "find_run", lambda *_: running)
    main([*WORDS])  # the first start of a job
    job(monkeypatch, restarts=1)
    main([*WORDS])
    assert [one.resume for one in launched] == [(), ("r-1",)]
    assert [one.must_resume for one in launched] == [False, False]  # the run may have no state yet
    assert len(launched[1].launch.hosts) == 2


def test_a_run_of_the_job_that_is_done_is_not_trained_again(
    launched: list[TrainingRun], monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    begin_record("r-1", {"slurm_job": "12", "command": ["ftcluster", *WORDS]})
    job(monkeypatch, restarts=1)
    done = RunProgress(run="r-1")
    done.add({
        "event": "start", "world_size": 2, "steps": 9, "train_samples": 72, "precision": "bf16",
        "ipex": False,
    })  # fmt: skip
    done.add({
        "event": "result", "model": "/ft/runs/r-1/model", "metrics": {}, "world_size": 2,
        "samples_per_second": 1.0, "train_seconds": 9.0,
    })  # fmt: skip
    done.add({"event": "end", "state": "done", "exit_code": 0, "seconds": 10.0})
    state = type("State", (), {"state": "done"})
    monkeypatch.setattr(train, "find_run", lambda *_: state)
    monkeypatch.setattr(train, "attach", lambda *_: Followed(done, None))  # type: ignore[arg-type]
    assert shell([*WORDS, "--json"]).document["model"] == "/ft/runs/r-1/model"
    assert launched == []


@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize(
    ("words", "state", "steps", "expected"),
    [
        (["--requeue"], "RUNNING", 5, ["12"]),
        (["--requeue"], "COMPLETING", 5, []),  # scancel
        (["--requeue"], "RUNNING", 0, []),
        ([], "RUNNING", 5, []),
    ],
    ids=["time limit", "cancelled", "no step", "not asked for"],
)
def test_a_job_that_is_stopped_is_requeued(
    monkeypatch: pytest.MonkeyPatch,
    words: list[str], state: str, steps: int, expected: list[str],
) -> None:  # fmt: skip
    def stopped(*_: object) -> None:
        raise Interrupted("stopped", details={"steps": steps})

    requeued: list[str] = []
    monkeypatch.setattr(training_run, "train", stopped)
    monkeypatch.setattr(slurm_job, "job_in_queue", lambda job: Queued(job, state))
    monkeypatch.setattr(slurm_job, "requeue", requeued.append)
    assert main([*WORDS, *words]) == 130
    assert requeued == expected


def test_outside_of_its_nodes_the_command_becomes_srun(
    launched: list[TrainingRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    def execute(_program: str, argv: list[str]) -> None:
        raise SystemExit(argv)

    job(monkeypatch, here="")
    monkeypatch.setattr(os, "execvp", execute)
    with pytest.raises(SystemExit) as became:
        main([*WORDS])
    argv: Any = became.value.code
    assert argv[0] == "srun"
    assert argv[-5:] == ["-m", "ftcluster.cli.main", *WORDS]
    assert launched == []


@pytest.mark.parametrize("word", ["--detach", "--watch", "--spares=1", "--min-nodes=1"])
def test_options_without_a_meaning_in_a_job(
    launched: list[TrainingRun], shell: Shell, word: str
) -> None:
    assert word.partition("=")[0] in shell([*WORDS, word], 2).err
    assert launched == []


# ---------------------------------------------------------------- export slurm


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Shell) -> Callable[..., str]:
    monkeypatch.chdir(tmp_path)
    remember(Cluster((), NODES))
    monkeypatch.setattr("sys.argv", ["/home/me/env/bin/ftcluster"])
    return lambda *words: shell(["export", "slurm", *words]).out


def test_the_script_trains_the_recipe_on_whole_nodes(written: Callable[..., str]) -> None:
    text = written("mrpc", "training.seed=7", "--nodes=4", "--time=4:00:00", "--partition=xeons")
    options = [line.split()[1] for line in text.splitlines() if line.startswith("#SBATCH")]
    assert options == [
        "--job-name=mrpc", "--nodes=4", "--time=4:00:00", "--partition=xeons",
        "--ntasks-per-node=1", "--exclusive", "--mem=0", "--signal=B:TERM@120", "--requeue",
        "--open-mode=append", "--output=mrpc-%j.log",
    ]  # fmt: skip
    command = "exec ftcluster train mrpc training.seed=7 --requeue --grace-seconds=90"
    assert text.splitlines()[-1] == command


def test_what_a_shell_would_read_otherwise_is_quoted(
    written: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "my reviews.csv").write_text("text,label\na,x\nb,y\n")
    (tmp_path / "ftcluster").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "ftcluster").chmod(0o755)
    text = written("classify", "--data", "my reviews.csv", "text_columns=[text]")
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash"], input=text, env={"PATH": path}, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "train", "classify", "text_columns=[text]", "--data", f"{tmp_path}/my reviews.csv",
        "--requeue", "--grace-seconds=90",
    ]  # fmt: skip


def test_the_script_has_no_path_of_the_users_environment(written: Callable[..., str]) -> None:
    """Colleagues submit the script too, and it outlives the environment that wrote it."""
    text = written("mrpc")
    assert set(re.findall(r"(?<![\w.])/[\w/]+", text)) == {"/bin/bash", "/dev/null"}
    done = subprocess.run(
        ["/bin/bash"], input=text, env={"PATH": "/none"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 127
    assert "error: ftcluster is not on this job's PATH" in done.stderr


def test_the_script_as_a_file(written: Callable[..., str], tmp_path: Path) -> None:
    assert written("mrpc", "-o", "job.sh") == "job.sh\n"
    assert (tmp_path / "job.sh").read_text().startswith("#!/bin/bash\n")


@pytest.mark.usefixtures("written")
def test_all_that_is_wrong_is_reported(shell: Shell) -> None:
    said = shell(["export", "slurm", "--time=soon", "--partition=a b", "--spares=1"], 2).err
    assert all(name in said for name in ("--time: 'soon'", "--partition: 'a b'", "--spares"))
    assert "mrpc" in shell("export slurm mrcp", 2).err
