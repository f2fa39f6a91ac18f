"""Fixtures of the supervisor's tests."""

import os
import time
from pathlib import Path

import pytest


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Make a run's folder whose name no other process has in its environment."""
    folder = tmp_path / "runs" / f"run-{os.getpid()}-{time.monotonic_ns()}"
    folder.mkdir(parents=True)
    return folder
