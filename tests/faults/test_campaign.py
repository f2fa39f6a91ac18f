"""The plan of a campaign's faults, and the SSH sessions above processes."""

import itertools
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.campaign import drawn_faults, planned_faults
from tests.faults.injections import FAULTS
from tests.faults.observe import sshd_above
from tests.programs import wait_for


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Yield a process with the name of sshd's session, which has a shell with a child."""
    program = tmp_path / "sshd-session"
    shutil.copy("/bin/sh", program)
    line = f"sh -c 'sleep 60 & echo $! > {tmp_path}/pid; wait' & wait"
    process = subprocess.Popen([program, "-c", line], start_new_session=True)
    try:
        wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        yield process
    finally:
        subprocess.run(["pkill", "-KILL", "-s", str(process.pid)], check=False)
        process.wait()


def test_the_session_above_a_process_is_there_until_it_is_killed(
    sshd: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    child = int((tmp_path / "pid").read_text())
    assert sshd_above(child) == sshd.pid
    sshd.kill()
    sshd.wait()
    assert Path(f"/proc/{child}").exists()
    assert sshd_above(child) != sshd.pid
    assert sshd_above(1) is None


def test_an_interrupted_campaign_continues_with_the_faults_that_are_left() -> None:
    whole = planned_faults(7, "hosts", (), 50)
    assert whole == list(itertools.islice(drawn_faults(7, "hosts", ()), 50))
    assert planned_faults(7, "hosts", (), 50, done=20) == whole[20:]
    assert planned_faults(7, "hosts", (), 50, done=50) == []


def test_only_campaigns_with_a_fault_of_the_clock_need_a_clock_that_can_be_set() -> None:
    assert {name for name, fault in FAULTS.items() if fault.sets_clock} == {
        "clock-steps", "clock-jumps", "head-clock-jumps",
    }  # fmt: skip
    for place in ("localhost", "hosts"):
        every = planned_faults(1, place, (), len(FAULTS))
        assert any(FAULTS[name].sets_clock for name in every)
    lost_sessions = planned_faults(82, "hosts", ("kill-session",), 3)
    assert lost_sessions == ["kill-session"] * 3
    assert not any(FAULTS[name].sets_clock for name in lost_sessions)
