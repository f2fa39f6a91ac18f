"""Commands in a crontab: no terminal, no stdin, a small PATH, and HOME as the only setting."""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import FEW_PAIRS, TWO, Cluster, no_rank_is_left
from tests.programs import FTCLUSTER, HANG_SECONDS

CRONTAB_PATH = "/usr/bin:/bin"


@pytest.fixture
def home() -> Iterator[Path]:
    """Return a folder with a short path: Ansible's sockets below it have at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="cron") as folder:
        yield Path(folder)


def cron(cluster: Cluster, home: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a command as cron does."""
    variables = {"HOME": home, "LOGNAME": "root", "SHELL": "/bin/sh", "PATH": CRONTAB_PATH}
    clean = ("env", "-i", *(f"{name}={value}" for name, value in variables.items()))
    line = " ".join([str(FTCLUSTER), *arguments])
    return subprocess.run(
        cluster.control.bed.run_argv(["setsid", "--wait", *clean, "/bin/sh", "-c", line]),
        cwd=home, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=HANG_SECONDS, check=False,
    )  # fmt: skip


@pytest.mark.long
def test_a_training_and_its_state_without_a_terminal(cluster: Cluster, home: Path) -> None:
    state = home / ".local/state/ftcluster"  # as after a setup with this HOME
    state.mkdir(parents=True)
    shutil.copy(cluster.control.folder / "state/ftcluster/cluster.json", state)
    before = {path.name for path in home.iterdir()}
    started = cron(cluster, home, "train", "quickstart", *TWO, *FEW_PAIRS, "--detach")
    assert started.returncode == 0, started.stderr
    [run] = started.stdout.splitlines()  # a script can take the id
    assert "\x1b" not in started.stdout + started.stderr
    listed = cron(cluster, home, "ps")
    assert listed.returncode == 0, listed.stderr
    assert (listed.stderr, run in listed.stdout) == ("", True), listed.stdout
    assert "\x1b" not in listed.stdout
    attached = cron(cluster, home, "attach", run, "--json")
    assert attached.returncode == 0, attached.stderr
    assert json.loads(attached.stdout)["state"] == "done"
    assert {path.name for path in home.iterdir()} - before <= {".ansible", ".cache", ".ssh"}
    assert list(home.glob(".ansible/tmp/*")) == []
    no_rank_is_left(cluster)
