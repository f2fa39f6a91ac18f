"""The demo as a user without root and sudo, from the user's own checkout."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.collection import export
from tests.programs import CACHE, HANG_SECONDS

pytestmark = pytest.mark.needs("root", "account")
WHEELS = CACHE / "ftcluster"
NAME = f"ftcluster-{os.getpid()}"


@pytest.fixture
def home() -> Iterator[Path]:
    """Yield the home of a new user with a checkout; pytest's own folders are private."""
    folder = Path("/var/tmp") / NAME
    checkout = folder / "ftcluster"
    subprocess.run(["useradd", "--no-create-home", "--home-dir", str(folder), NAME], check=True)
    try:
        export(checkout)
        if WHEELS.exists():  # without these wheels, other tests have not downloaded them yet
            shutil.copytree(WHEELS, folder / ".cache/ftcluster")
        for path in [folder, *folder.rglob("*")]:
            shutil.chown(path, NAME, NAME)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run(["userdel", NAME], check=True)


def test_the_first_command_as_an_ordinary_user(home: Path) -> None:
    mine = ("HOME", "USER", "LOGNAME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR",
            "HF_HOME", "PYENV_ROOT")  # fmt: skip
    environment = {key: value for key, value in os.environ.items() if key not in mine}
    done = subprocess.run(
        ["./demo", "--json"],
        user=NAME,
        group=NAME,
        extra_groups=[],
        # use the system's Python, because root's own Python may be closed to others. 0 stops pip
        # from compiling packages, of which few modules are imported
        env={**environment, "HOME": str(home), "PATH": "/usr/bin:/bin", "PIP_NO_COMPILE": "0"},
        cwd=home / "ftcluster",
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    notes = [line for line in done.stderr.splitlines() if line.startswith("note:")]
    notes = [line for line in notes if "its CPU" not in line]  # a virtual machine may hide AMX
    assert len(notes) == 1
    assert re.search(
        r"root is not available here \(.*\), so tcmalloc is (not installed|installed already)",
        notes[0],
    )
    result = json.loads(done.stdout)
    assert result["metrics"]["accuracy"] >= 0.9
    assert result["model"].startswith(str(home / ".local/share/ftcluster/runs/"))
    assert Path(result["model"]).owner() == NAME
