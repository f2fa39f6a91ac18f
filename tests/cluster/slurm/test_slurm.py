"""Trainings in Slurm jobs, with ftcluster and its stack in a folder that all nodes see."""

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.slurm.cluster import NODES, SlurmCluster, slurm_cluster
from tests.programs import CONTROL, ROOT, wait_for

pytestmark = pytest.mark.long

PATH = "export PATH=$PWD/cli/bin:$PATH"  # sbatch passes PATH on to the job
INSTALL = """
set -e
python3 -m venv cli
cli/bin/pip install --quiet --require-hashes -r control.txt
cli/bin/pip install --quiet --no-deps ftcluster-*.whl
cli/bin/ftcluster setup localhost -e ftcluster_root=false -e ftcluster_prefix=$PWD/ft
"""
SECONDS = 900  # limit of a wait, also on a busy machine
# a node has one core; unless `short`, the training is long enough to be stopped in the middle
SHORT = ("ranks_per_host=1", "batch_size=8", "data=generated:train=160,validation=40,seed=1")
LONG = (*SHORT[:2], "data=generated:train=800,validation=40,seed=1", "training.logging_steps=1")


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmCluster]:
    shared = Path(tempfile.mkdtemp(prefix="ftcluster-slurm-", dir="/var/tmp"))
    try:
        shared.chmod(0o755)
        with slurm_cluster(shared) as found:
            found.install(ROOT, CONTROL / "pip", INSTALL)
            yield found
    finally:
        shutil.rmtree(shared)


def submit(slurm: SlurmCluster, *words: str) -> str:
    """Submit a script that `ftcluster export` wrote, and return the id of the job."""
    export = ("ftcluster", "export", "slurm", *words, "-o", "job.sh")
    done = slurm.as_user(f"{PATH} && {' '.join(export)} && sbatch --parsable job.sh")
    assert done.returncode == 0, done.stderr
    assert str(slurm.shared) not in (slurm.shared / "job.sh").read_text()
    return done.stdout.split()[-1]


def wait(slurm: SlurmCluster, job: str, *states: str) -> None:
    wait_for(lambda: slurm.state(job) in states, SECONDS)


def runs(slurm: SlurmCluster, job: str) -> list[tuple[Path, list[dict[str, Any]]]]:
    """Return the runs of a job from first to last, with their events."""
    of_job = []
    for events in sorted(slurm.shared.glob("ft/runs/*/events.jsonl"), key=lambda path: path.parent):
        launch = json.loads((events.parent / "launch.json").read_text())
        if launch["slurm_job"] == job:
            lines = events.read_text().splitlines()
            of_job.append((events.parent, [json.loads(line) for line in lines]))
    return of_job


def of(kind: str, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == kind]


def wait_for_step(slurm: SlurmCluster, job: str) -> None:
    wait_for(lambda: any(len(of("step", events)) > 2 for _, events in runs(slurm, job)), SECONDS)


def test_a_job_trains_on_its_nodes(slurm: SlurmCluster) -> None:
    job = submit(slurm, "quickstart", *SHORT, "--nodes", "2", "--time", "20")
    wait(slurm, job, "RUNNING")
    wait_for(lambda: runs(slurm, job), SECONDS)
    # this host does not run the supervisor
    listed = slurm.as_user("cli/bin/ftcluster ps --json", NODES[1])
    assert json.loads(listed.stdout)[0]["state"] == "running", listed.stderr
    wait(slurm, job, "COMPLETED", "FAILED")
    log = (slurm.shared / f"quickstart-{job}.log").read_text()
    assert slurm.state(job) == "COMPLETED", log
    [(run, events)] = runs(slurm, job)
    assert f"model: {run}/model" in log
    assert (run / "model/model.safetensors").stat().st_size > 10**7
    [placement] = of("placement", events)
    assert [rank["host"] for rank in placement["ranks"]] == list(NODES)
    assert of("end", events)[0]["state"] == "done"


def test_a_job_that_is_signalled_is_requeued_and_continues(slurm: SlurmCluster) -> None:
    job = submit(slurm, "quickstart", *LONG, "--nodes", "2", "--time", "30")
    wait_for_step(slurm, job)
    # the same as --signal sends before the time limit
    slurm.as_user(f"scancel --batch --signal=TERM {job}")
    wait_for(lambda: len(runs(slurm, job)) == 2, SECONDS)
    wait(slurm, job, "COMPLETED", "FAILED")
    (first, before), (second, after) = runs(slurm, job)
    assert slurm.state(job) == "COMPLETED"
    assert of("end", before)[0]["state"] == "stopped"
    [saved] = of("checkpoint", before)
    assert re.search(rf"resumed after step {saved['step']}\b", json.dumps(of("notice", after)))
    assert of("step", after)[0]["step"] == saved["step"] + 1
    assert not (first / "model").exists()
    assert (second / "model/model.safetensors").exists()


def test_scancel_leaves_a_checkpoint_and_no_process(slurm: SlurmCluster) -> None:
    job = submit(slurm, "quickstart", *LONG, "--nodes", "2", "--time", "30")
    wait_for_step(slurm, job)
    slurm.as_user(f"scancel {job}")  # SIGTERM to every process
    wait(slurm, job, "CANCELLED")
    [(run, events)] = runs(slurm, job)
    [saved] = of("checkpoint", events)
    assert Path(saved["folder"]).parents[1] == run
    assert (run / f"checkpoints/checkpoint-{saved['step']}/manifest.json").exists()
    for name in NODES:
        wait_for(lambda name=name: not slurm.processes(name))  # type: ignore[misc]
