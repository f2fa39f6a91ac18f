"""Finds and ends the processes of a run on this host. Standard library only."""

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import time
from pathlib import Path

from ftcluster_common.protocol.launch import RUN_VARIABLE

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # Linux, include/uapi/linux/prctl.h
MARK = re.compile(rf"(?:^|\0){RUN_VARIABLE}=([^\0]+)".encode())
GRACE_SECONDS = 10.0  # between SIGTERM and SIGKILL
GONE_SECONDS = 10.0  # maximum time that `kill_all` repeats SIGKILL


def processes_of(run: str) -> list[int]:
    """Return the ids of a run's processes on this host, except this process.

    An environment variable of each process names the run. mpirun's process group is not enough,
    because Hydra's proxies and the ranks have their own sessions.
    """
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if run_of(folder) == run and int(folder.name) != os.getpid():
                pids.append(int(folder.name))
    return pids


def run_of(process: Path) -> str:
    """Return the id of a process's run, from its folder in /proc; "" if it belongs to no run.

    Raises:
        OSError: the process has ended, or belongs to another user.
    """
    match = MARK.search((process / "environ").read_bytes())
    return match[1].decode(errors="replace") if match else ""


def end_with_parent(number: int = signal.SIGTERM, parent: int | None = None) -> None:
    """Make the kernel send this process a signal when its parent has ended (Linux).

    Args:
        number: number of the signal.
        parent: the parent's process id, for a new child whose parent may already have ended; None
            to skip this check.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if parent not in (None, os.getppid()):
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants of this process (Linux)."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def is_running(pid: int) -> bool:
    """Return True if a process exists and is not a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def end_group(process: "subprocess.Popen[bytes]") -> None:
    """End a process group: send SIGTERM, wait for a grace period, then send SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        signal_group(process, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
            return


def signal_group(process: "subprocess.Popen[bytes]", number: int) -> None:
    """Send a signal to the process group that a process leads."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def wait_for_end(run: str) -> None:
    """Wait up to GRACE_SECONDS until the run's processes have ended; mpirun does not wait."""
    deadline = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < deadline and any(map(is_running, processes_of(run))):
        time.sleep(0.1)


def kill_all(run: str) -> None:
    """Kill a run's processes on this host; repeat until none is left, as new ones may start."""
    deadline = time.monotonic() + GONE_SECONDS
    while kill_rest(run) and time.monotonic() < deadline:
        time.sleep(0.1)


def kill_rest(run: str) -> list[int]:
    """Kill a run's remaining processes on this host; return the ids of the killed processes."""
    killed = []
    for pid in processes_of(run):
        with contextlib.suppress(OSError):  # the process has ended
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
    return killed
