"""The previous release's code, from the history of this checkout."""

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.programs import ROOT

FILE = ROOT / "tests/cluster/previous_release.txt"
PACKAGES = ("runner", "common", "train")


def commit() -> str:
    """Return the commit or tag of the previous release."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    (name,) = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    return name


def unpack(folder: Path) -> Path:
    """Write the sources of the previous release into a folder; skip the test without them."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), "archive", "--format=tar", commit()],
        capture_output=True, check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(
            f"this checkout lacks the previous release, {commit()[:12]}: it is a shallow clone, or "
            "has no history; git fetch --unshallow --tags"
        )
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
        tar.extractall(folder, filter="data")
    return folder


def python(folder: Path, code: str, *arguments: str, timeout: float = 60) -> str:
    """Run code with the packages of the previous release; return its output."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(str(folder / one) for one in PACKAGES)},
        capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
