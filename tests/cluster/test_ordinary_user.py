"""The main job as a user without root and without sudo."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.programs import FTCLUSTER, ROOT, SECONDS

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0,
    reason="needs root, to become another user; run as a user it is tested anyway",
)
NOBODY = 65534


def test_demo_as_an_ordinary_user() -> None:
    # pytest's folders are private to root
    home = Path("/var/tmp") / f"ftcluster-user-{os.getpid()}"
    home.mkdir(mode=0o755)
    try:
        os.chown(home, NOBODY, NOBODY)
        done = subprocess.run(
            [str(FTCLUSTER), "demo", "--json"],
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            env={"HOME": str(home), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
            cwd=home,
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
    finally:
        shutil.rmtree(home)


def test_the_checkout_can_be_read_by_others() -> None:
    assert ROOT.stat().st_mode & 0o005 == 0o005
