"""SIGTERM with a real supervisor and guardian; a shell script replaces mpirun."""

import getpass
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ftcluster_train.errors import STOPPED_LINE
from ftcluster_train.supervisor.heartbeats import Stopped, StopRequest
from tests.programs import wait_for
from tests.unit.supervisor.test_restarts import started
from tests.unit.supervisor.test_supervisor import notices, processes_of, supervisor, until_end

# takes its time, like a rank that saves; "deaf" never ends
RANK = f"""
import os, signal, sys, time
folder, step, deaf = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
os.write(int(os.environ["FTCLUSTER_PROGRESS_FD"]), b'{{"step": %d, "doing": "forward"}}\\n' % step)
open(folder + "/pids", "w").write(f"{{os.getpid()}} {{os.getppid()}}")
while deaf or not asked:
    time.sleep(0.05)
time.sleep(0.5)
print("{STOPPED_LINE}", flush=True)
"""

LONG = 600.0  # a grace time that no test reaches


def training(run_dir: Path, *words: str, **fields: Any) -> tuple[int, int, int]:
    """Start a training with one rank; return the ids of supervisor, guardian and rank."""
    program = run_dir / "rank.py"
    program.write_text(RANK)
    started(
        run_dir,
        f"exec {sys.executable} {program} {run_dir} {' '.join(words)}",
        max_restarts=3,
        **fields,
    )
    pids = run_dir / "pids"
    wait_for(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    time.sleep(1.5)  # until the supervisor has received the rank's step
    rank, guardian = map(int, pids.read_text().split())
    return int((run_dir / "supervisor.pid").read_text()), guardian, rank


@pytest.mark.parametrize("who", [0, 1, 2], ids=["supervisor", "guardian", "rank"])
def test_a_training_saves_and_ends_with_143(run_dir: Path, who: int) -> None:
    pids = training(run_dir, "7")
    os.kill(pids[who], signal.SIGTERM)
    if who == 1:  # as during a shutdown
        os.kill(pids[2], signal.SIGTERM)
    end = until_end(run_dir)
    assert (end["state"], end["exit_code"]) == ("stopped", 143)
    target = ("the supervisor", "rank 0", "")[who]  # this rank does not report its signals
    sender = f"{getpass.getuser()} (process {os.getpid()}, "
    assert end["cause"] == ("signal" if target else "")
    assert str(end["why"]).startswith(sender if target else "")
    assert f" sent SIGTERM to {target} on head at " in str(end["why"]) or not target
    assert STOPPED_LINE in (run_dir / "ranks.log").read_text()
    assert notices(run_dir) == []
    assert processes_of(run_dir.name) == []


def seconds_of(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def test_ranks_that_do_not_end_in_the_grace_time_are_ended(run_dir: Path) -> None:
    training(run_dir, "7", "deaf")
    assert seconds_of(lambda: supervisor("stop", run_dir)) > 2.0  # the test's grace time
    assert until_end(run_dir)["state"] == "stopped"
    assert processes_of(run_dir.name) == []


def test_a_second_signal_and_one_before_the_first_step_end_at_once(run_dir: Path) -> None:
    pid, _, _ = training(run_dir, "7", "deaf", grace_seconds=LONG)
    os.kill(pid, signal.SIGTERM)
    time.sleep(0.3)
    os.kill(pid, signal.SIGTERM)
    assert until_end(run_dir)["exit_code"] == 143


def test_before_the_first_step_there_is_nothing_to_save(run_dir: Path) -> None:
    pid, _, _ = training(run_dir, "0", "deaf", grace_seconds=LONG)
    os.kill(pid, signal.SIGTERM)
    assert until_end(run_dir)["state"] == "stopped"


def test_a_run_that_waits_for_a_restart_can_be_stopped(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started(run_dir, "kill -9 $$", max_restarts=1000)
    wait_for(lambda: len(notices(run_dir)) > 1)
    monkeypatch.setenv("FTCLUSTER_STOPPED_BY", "ops on bastion")
    assert supervisor("stop", run_dir).stdout.splitlines()[0] == "stopped"
    end = until_end(run_dir)
    assert (end["state"], end["cause"]) == ("stopped", "stop")
    assert end["why"] == "stopped with ftcluster stop by ops on bastion"


def test_a_stop_whose_exception_python_drops_is_seen_at_the_next_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Forks:
        """A stand-in for the function that Python calls at a fork; its errors reach one hook."""

        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    dropped: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda one: dropped.append(one.exc_type))
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        request = StopRequest()
        ranks: Any = SimpleNamespace(lives=[SimpleNamespace(step=0)])
        request.saving, request.holding = ranks, False
        request.check()
        Forks()
        assert dropped == [Stopped]
        with pytest.raises(Stopped):
            request.check()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_slurm_may_signal_every_process_several_times(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("SLURMD_NODENAME", "head")
    in_job: dict[str, Any] = {"slurm_job": "12", "env": {"SLURM_JOB_ID": "12"}}
    supervisor_, guardian, rank = training(run_dir, "7", "deaf", **in_job, grace_seconds=5.0)
    for pause in (2.2, 1.0):  # a guardian treats signals 2 s later as a second request
        os.kill(supervisor_, signal.SIGTERM)
        os.kill(guardian, signal.SIGTERM)
        time.sleep(pause)
    assert rank in processes_of(run_dir.name)  # the rank may still save
    assert until_end(run_dir)["state"] == "stopped"
