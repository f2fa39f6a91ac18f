"""report_to without any network: no interface is up, not even loopback."""

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.beside import TRACKERS
from tests.programs import ROOT

pytestmark = pytest.mark.needs("user namespace")
ALONE = ["unshare", "--map-root-user", "--net"]


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reports")
    path = os.pathsep.join([os.environ.get("PYTHONPATH", ""), TRACKERS])
    # settings of Trainer's users; a proxy or token would allow connections
    changes = {"PYTHONPATH": path, "HOME": str(folder)}
    done = subprocess.run(
        [*ALONE, sys.executable, "-m", "tests.engine.report_to", str(folder)],
        env={**os.environ, **changes}, cwd=ROOT, text=True, capture_output=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning: trackio" not in done.stdout + done.stderr
    return folder


def test_nothing_leads_out() -> None:
    code = "import socket; socket.create_connection(('127.0.0.1', 9), 1)"
    done = subprocess.run(
        [*ALONE, sys.executable, "-c", code], text=True, capture_output=True, check=False
    )
    assert "Network is unreachable" in done.stderr


@pytest.mark.parametrize(
    ("place", "tags"),
    [
        ("reports/tensorboard", {"train/loss", "train/epoch", "eval/f1"}),
        ("trainer", {"train/loss", "train/learning_rate", "train/grad_norm"}),
    ],
)
def test_tensorboard(logged: Path, place: str, tags: set[str]) -> None:
    sys.path.append(TRACKERS)
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        found = EventAccumulator(str(logged / place))
        found.Reload()
        assert tags <= set(found.Tags()["scalars"])
        assert [one.step for one in found.Scalars("train/loss")] == [1, 2]
    finally:
        sys.path.remove(TRACKERS)


def test_trackio(logged: Path) -> None:
    folder = logged / "reports/trackio"
    with sqlite3.connect(folder / "ftcluster.db") as ours:
        rows = ours.execute("select run_name, step, metrics from metrics").fetchall()
    assert [(name, step) for name, step, _ in rows] == [("run-1", step) for step in (1, 2, 2)]
    assert json.loads(rows[-1][2])["eval_f1"] == 0.5
    (other,) = {path.stem for path in folder.glob("*.db")} - {"ftcluster"}
    with sqlite3.connect(folder / f"{other}.db") as trainers:
        names = trainers.execute("select distinct run_name from metrics").fetchall()
    assert names == [("run-2",)]
