"""Restarts with real guardians; a shell script replaces mpirun."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ftcluster_common.protocol.launch import Launch, RankHost
from ftcluster_train.errors import TrainError, error_line
from ftcluster_train.io.events import EventWriter
from ftcluster_train.supervisor.monitors import watch_of
from ftcluster_train.supervisor.rank_life import Trouble
from tests.programs import NODE_PATH
from tests.unit.supervisor.test_supervisor import (
    CORES,
    errors,
    events,
    launch,
    notices,
    processes_of,
    until_end,
)


def started(
    run_dir: Path,
    program: str,
    max_restarts: int,
    site_packages: str = "",
    ends: str = "code > 128 ? 255 : code",  # as Hydra does
    **launch_fields: Any,
) -> None:
    """Launch a program as a rank under its guardian by a supervisor."""
    script = (
        f"export PYTHONPATH={NODE_PATH}:{site_packages} PMI_RANK=0; "
        f"'{sys.executable}' -m ftcluster_train.host.bind sh -c '{program}'; "
        f"code=$?; exit $(({ends}))"
    )
    launch(
        run_dir, script, site_packages=site_packages, hosts=[RankHost("head", "127.0.0.1", CORES)],
        max_restarts=max_restarts, **launch_fields,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("program", "restarts", "state"),
    [
        ('[ "$FTCLUSTER_RESTART" = 2 ] || kill -9 $$', 3, "done"),
        ("kill -9 $$", 2, "failed"),
        ("exit 7", 3, "failed"),  # the program's own failure
    ],
)
def test_a_killed_rank_is_started_again(
    tmp_path: Path, program: str, restarts: int, state: str
) -> None:
    started(tmp_path, program, restarts)
    assert until_end(tmp_path)["state"] == state
    killed = program != "exit 7"
    assert ["SIGKILL" in text for text in notices(tmp_path)] == [True] * (2 if killed else 0)
    if state == "failed":
        [error] = errors(tmp_path)
        assert ("SIGKILL" in str(error["message"])) == killed


@pytest.mark.parametrize(
    ("pids", "cause"),
    [
        ("$PPID", "rank 0 on head: its guardian process"),
        ('$(cut -d" " -f4 /proc/$PPID/stat) $PPID', "head: mpirun"),
    ],
)
def test_what_was_killed_is_named(tmp_path: Path, pids: str, cause: str) -> None:
    """The end of mpirun also ends the guardians."""
    started(tmp_path, f'[ "$FTCLUSTER_RESTART" = 1 ] || {{ kill -9 {pids}; sleep 9; }}', 1)
    assert until_end(tmp_path)["state"] == "done"
    [notice] = notices(tmp_path)
    assert f"{cause} was killed" in notice


def test_a_clock_that_jumps_back_changes_nothing(run_dir: Path, tmp_path: Path) -> None:
    jumps = tmp_path / "jumps"
    jumps.mkdir()
    (jumps / "sitecustomize.py").write_text(
        "import os, time\nreal = time.time\n"
        f"time.time = lambda: real() - 7200 * os.path.exists({str(jumps / 'back')!r})\n"
    )
    started(run_dir, f"sleep 1; touch {jumps}/back; sleep 3", 0, str(jumps))
    end = until_end(run_dir)
    times = [event["time"] for event in events(run_dir)]
    assert times[-1] < times[0] - 7000
    assert end["state"] == "done"
    assert 4 <= end["seconds"] < 60


def test_mpirun_that_is_stopped_does_not_keep_a_run_from_its_end(run_dir: Path) -> None:
    started(run_dir, 'kill -STOP $(cut -d" " -f4 /proc/$PPID/stat)', 0, ends="141")
    end = until_end(run_dir)
    assert (end["state"], end["exit_code"]) == ("done", 0)  # then Hydra meets closed pipes


def test_of_several_that_were_killed_the_first_is_the_cause(run_dir: Path) -> None:
    watch = watch_of(Launch(str(run_dir), (), {}, (), "", ""), EventWriter(run_dir))
    for rank in (2, 0):
        banner = f"=   RANK {rank} PID 7 RUNNING AT 10.0.0.1\n=   KILLED BY SIGNAL: 9 (Killed)\n"
        watch.feed("stdout", banner.encode())
    watch.close()
    lost = [Trouble("node1", rank, 4, "signal", "killed") for rank in (0, 1, 2)]
    assert watch.blame(lost) == lost[2:]
    assert watch.blame(lost[:2]) == lost[:2]


def script(run_dir: Path, text: str, max_restarts: int = 0, hang_seconds: float = 0.0) -> None:
    """Launch a user's script on one rank by a supervisor."""
    (run_dir / "script.py").write_text(text)
    job = {"program": ["script.py"], "start": str(run_dir)}
    (run_dir / "job.json").write_text(json.dumps({"run": "r", "prefix": "/p", "script": job}))
    program = f"exec {sys.executable} -m ftcluster_train.host.script run {run_dir}"
    started(run_dir, program, max_restarts, script=True, hang_seconds=hang_seconds)


def test_a_script_that_was_killed_is_started_again(run_dir: Path) -> None:
    script(run_dir, "import os; int(os.environ['FTCLUSTER_RESTART']) or os.kill(os.getpid(), 9)", 1)
    assert until_end(run_dir)["state"] == "done"
    [notice] = notices(run_dir)
    assert "SIGKILL" in notice


def test_a_script_that_hangs_is_named_with_its_stacks(run_dir: Path) -> None:
    script(run_dir, "import time\ndef stuck(): time.sleep(300)\nstuck()", hang_seconds=2)
    assert until_end(run_dir)["state"] == "failed"
    [error] = errors(run_dir)
    assert (error["cause"], error["rank"], error["host"]) == ("hung", 0, "head")
    logs = "".join(path.read_text() for path in (run_dir / "logs").iterdir())
    assert "in stuck" in logs
    assert processes_of(run_dir.name) == []


def test_a_script_that_is_stopped_is_named(run_dir: Path) -> None:
    script(run_dir, "import os, signal, time; os.kill(os.getpid(), 19); time.sleep(300)")
    assert until_end(run_dir)["state"] == "failed"
    [error] = errors(run_dir)
    assert (error["cause"], error["rank"]) == ("stopped", 0)
    assert processes_of(run_dir.name) == []


def test_a_script_that_waits_for_a_program_of_its_own_is_not_hung(run_dir: Path) -> None:
    work = "import time\nend = time.monotonic() + 4\nwhile time.monotonic() < end: pass"
    text = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {work!r}], check=True)"
    script(run_dir, text, hang_seconds=2)
    assert until_end(run_dir)["state"] == "done"


def test_a_port_that_was_taken_costs_a_restart(run_dir: Path) -> None:
    line = error_line(TrainError("port 29550 is taken", restartable=True)).replace('"', '\\"')
    started(run_dir, f'[ "$FTCLUSTER_RESTART" = 1 ] || {{ echo "[0] {line}"; exit 1; }}', 3)
    assert until_end(run_dir)["state"] == "done"
    [notice] = notices(run_dir)
    assert "port 29550 is taken" in notice


def test_ranks_know_the_runs_time_out(run_dir: Path) -> None:
    started(run_dir, '[ "$FTCLUSTER_TIMEOUT" = 7 ]', 0, timeout_seconds=7.0)
    assert until_end(run_dir)["state"] == "done"
