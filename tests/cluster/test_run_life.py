"""The life of a run on this machine: detach, list, read, follow, stop, fetch, remove."""

import json
import platform
from pathlib import Path
from typing import Any

from tests.cluster.cluster import FEW_PAIRS
from tests.cluster.conftest import Machine
from tests.programs import wait_for

SCRIPTS = Path(__file__).with_name("scripts")


def listed(machine: Machine, run: str) -> dict[str, Any]:
    done = machine.home.run("ps", "--json")
    assert done.returncode == 0, done.stderr
    return next(one for one in json.loads(done.stdout) if one["run"] == run)


def detached(machine: Machine, *command: str) -> str:
    done = machine.home.run(*command)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_detached_run_is_followed_read_and_fetched(machine: Machine, tmp_path: Path) -> None:
    run = detached(machine, "train", "quickstart", *FEW_PAIRS, "--detach")
    assert listed(machine, run)["state"] == "running"
    attached = machine.home.run("attach", run, "--json")
    assert attached.returncode == 0, attached.stderr
    document = json.loads(attached.stdout)
    assert (document["run"], document["state"]) == (run, "done")
    found = listed(machine, run)
    assert (found["state"], found["recipe"]) == ("done", "quickstart")
    assert found["hosts"] == ["localhost"]
    assert found["started_by"].endswith(f" on {platform.node()}")
    assert found["step"] == found["steps"] == document["steps"]
    model = tmp_path / "model"
    fetched = machine.home.run("fetch", run, str(model))
    assert fetched.returncode == 0, fetched.stderr
    for file in Path(document["model"]).iterdir():
        assert (model / file.name).read_bytes() == file.read_bytes()
    assert machine.home.run("fetch", run, str(model)).returncode == 1  # it is not empty
    assert "[1] " in machine.home.run("logs", run).stdout


def test_a_stopped_run_is_removed(machine: Machine) -> None:
    waits = ("--", str(SCRIPTS / "ends.py"), "0", "9")
    run = detached(machine, "run", "--detach", "--ranks-per-host", "2", *waits)
    folder = machine.home.prefix / "runs" / run
    wait_for((folder / "logs/rank-1.log").exists, 120)
    attached = machine.home.start("attach", run)
    assert attached.stdout is not None
    assert any("rank 0 is here now" in line for line in attached.stdout)
    attached.terminate()  # as a control node that restarts, or `timeout`
    _, said = attached.communicate(timeout=60)
    assert (attached.returncode, f"ftcluster attach {run}" in said) == (143, True)
    assert listed(machine, run)["state"] == "running"
    second = machine.home.run("train", "quickstart", *FEW_PAIRS)
    assert (second.returncode, f"run {run} is using it (since " in second.stderr) == (1, True)
    refused = machine.home.run("clean", run)
    assert (refused.returncode, "is running" in refused.stderr) == (1, True)
    stopped = machine.home.run("stop", run, "--json")
    assert (stopped.returncode, json.loads(stopped.stdout)["state"]) == (0, "stopped")
    assert machine.home.left_running() == []
    cleaned = machine.home.run("clean", run, "--json")
    assert json.loads(cleaned.stdout)["removed"] == [run]
    assert not folder.exists()
