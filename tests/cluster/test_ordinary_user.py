"""The main job as a user without root and without sudo, from a checkout of the user's own."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.programs import ROOT, SECONDS

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0,
    reason="needs root, to become another user; every other test runs as this one",
)
NOBODY = 65534


@pytest.fixture
def home() -> Iterator[Path]:
    """A home folder with a checkout in it; pytest's own folders are closed to other users."""
    folder = Path("/var/tmp") / f"ftcluster-user-{os.getpid()}"
    checkout = folder / "ftcluster"
    listing = ["git", "-C", str(ROOT), "ls-files", "-z"]
    names = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split("\0")
    try:
        for name in filter(None, names):
            target = checkout / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target)
        for path in [folder, *folder.rglob("*")]:
            os.chown(path, NOBODY, NOBODY)
        yield folder
    finally:
        shutil.rmtree(folder)


def test_the_first_command_as_an_ordinary_user(home: Path) -> None:
    mine = ("HOME", "USER", "LOGNAME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "HF_HOME", "PYENV_ROOT")
    environment = {key: value for key, value in os.environ.items() if key not in mine}
    done = subprocess.run(
        ["./demo", "--json"],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        # the system's Python: root's own may be closed to others
        env={**environment, "HOME": str(home), "PATH": "/usr/bin:/bin"},
        cwd=home / "ftcluster",
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    notes = [line for line in done.stderr.splitlines() if line.startswith("note:")]
    assert len(notes) == 1
    assert "no root here, so tcmalloc is not installed" in notes[0]
    result = json.loads(done.stdout)
    assert result["metrics"]["accuracy"] >= 0.9
    assert result["model"].startswith(str(home / ".local/share/ftcluster/runs/"))
    assert Path(result["model"]).stat().st_uid == NOBODY
