"""The previous release and these sources on one cluster, following and resuming each other's runs.

Both control nodes share a state folder, as before and after an upgrade of one control node.
"""

import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import previous
from tests.cluster.cluster import TWO
from tests.cluster.control import HEAD, OTHER, SECONDS, Completed, Control, bare_hosts
from tests.programs import CONTROL, FTCLUSTER, ROOT

pytestmark = pytest.mark.long
PAIR = (HEAD, OTHER)
QUICK = ("train", "quickstart", *TWO, "--detach", "batch_size=8")
SHORT = "data=generated:train=240,validation=40,seed=1"
LONG = "data=generated:train=40000,validation=40,seed=1"
STEP_SECONDS = 180


@dataclass(frozen=True)
class Side:
    """A control node of one version.

    Attributes:
        program: the `ftcluster` of this version.
    """

    control: Control
    program: Path

    def run(self, *arguments: str) -> Completed:
        control = self.control
        return control.bed.run(
            self.program, *arguments, env=control.env, cwd=control.folder, timeout=SECONDS
        )

    def done(self, *arguments: str) -> str:
        """Return the output of a command that must succeed."""
        done = self.run(*arguments)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def listed(self, run: str) -> dict[str, Any]:
        rows = json.loads(self.done("ps", "--all", "--json"))
        found: dict[str, Any] = next(row for row in rows if row["run"] == run)
        return found


@dataclass(frozen=True)
class Versions:
    old: Side
    new: Side
    inventory: str


def installed(folder: Path) -> Path:
    """Return the previous release's `ftcluster`, built and installed with the locked packages."""
    sources = previous.unpack(folder / "sources")
    python = ROOT / ".venv-dev/bin/python"
    build = (python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    subprocess.run([*build, sources, "-w", folder / "wheels"], check=True, timeout=SECONDS)
    (wheel,) = (folder / "wheels").glob("*.whl")
    venv = folder / "venv"
    subprocess.run([CONTROL / "python", "-m", "venv", "--without-pip", venv], check=True)
    uv = (ROOT / ".venv-dev/bin/uv", "pip", "install", "--quiet", "--python", venv / "bin/python")
    lock = sources / "requirements/control.txt"
    subprocess.run([*uv, "--require-hashes", "-r", lock], check=True, timeout=SECONDS)
    subprocess.run([*uv, "--offline", "--no-deps", wheel], check=True, timeout=SECONDS)
    return venv / "bin/ftcluster"


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Versions]:
    """Yield two hosts that the previous release has set up."""
    folder = tmp_path_factory.mktemp("versions")
    program = installed(folder)
    with bare_hosts("bookworm", folder, PAIR) as control:
        both = Versions(
            Side(control, program), Side(control, FTCLUSTER), control.inventory("i.ini", PAIR)
        )
        both.old.done("setup", both.inventory)
        yield both


def started(side: Side, data: str) -> str:
    return side.done(*QUICK, data).strip()


def wait_for_step(side: Side, run: str) -> dict[str, Any]:
    """Wait until a run trains; return its row."""
    deadline = time.monotonic() + STEP_SECONDS
    while not (row := side.listed(run))["step"]:
        assert row["state"] == "running", row
        assert time.monotonic() < deadline
        time.sleep(1)
    return row


def check_both_ways(start: Side, other: Side, folder: Path) -> str:
    """Start runs with one control node, and follow, stop and resume them with the other.

    Returns:
        A run that was stopped and can be resumed.
    """
    run = started(start, SHORT)
    attached = json.loads(other.done("attach", run, "--json"))
    assert (attached["run"], attached["state"]) == (run, "done")
    row = other.listed(run)
    assert (row["state"], row["hosts"], row["step"]) == ("done", list(PAIR), row["steps"])
    assert row["started_by"]
    assert "[" in other.done("logs", run)
    other.done("fetch", run, str(folder / run))
    assert (folder / run / "model.safetensors").exists()

    stopped = started(start, LONG)
    row = wait_for_step(other, stopped)
    assert "preparing" not in other.done("ps")
    assert json.loads(other.done("stop", stopped, "--json"))["state"] == "stopped"

    forced = started(start, LONG)
    wait_for_step(other, forced)
    assert json.loads(other.done("stop", "--force", forced, "--json"))["state"] == "stopped"
    for name in PAIR:
        left = start.control.bed.exec_(name, "pgrep", "-u", "ftcluster", "-af", "engine.rank")
        assert left.returncode == 1, left.stdout
    return stopped


def test_each_version_works_with_the_runs_of_the_other(versions: Versions, tmp_path: Path) -> None:
    old, new = versions.old, versions.new
    before = check_both_ways(old, new, tmp_path)  # the hosts have the old package
    again = started_again(new, before)
    assert json.loads(new.done("stop", again, "--json"))["state"] == "stopped"

    new.done("setup", versions.inventory)
    after = check_both_ways(new, old, tmp_path)
    # the formats of both releases are the same, so each of them resumes the runs of the other
    resumed = started_again(old, after)
    assert json.loads(new.done("stop", resumed, "--json"))["state"] == "stopped"
    for run in (after, again):  # the second run continues from a checkpoint of the old package
        resumed = started_again(new, run)
        assert json.loads(old.done("stop", resumed, "--json"))["state"] == "stopped"


def started_again(side: Side, run: str) -> str:
    """Resume a run, check that it continues after its last step, and return the new id."""
    step = side.listed(run)["step"]
    resumed = side.done("train", "--resume", run, "--detach").strip()
    row = wait_for_step(side, resumed)
    assert row["step"] > step
    return resumed
