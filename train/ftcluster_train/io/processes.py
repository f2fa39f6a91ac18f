"""Functions that find and end the processes of a run on this host. Standard library only."""

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
GONE_SECONDS = 10.0  # longest wait for the end of processes after SIGKILL


def processes_of(run: str) -> list[int]:
    """Return the ids of a run's processes on this host, except this process.

    An environment variable of each process names the run. mpirun's process group would not suffice,
    because Hydra's proxies and the ranks have sessions of their own.
    """
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if run_of(folder) == run and int(folder.name) != os.getpid():
                pids.append(int(folder.name))
    return pids


def run_of(process: Path) -> str:
    """Return the id of a process's run, read from its folder in /proc; "" if it has none.

    Raises:
        OSError: the process has ended, or belongs to another user.
    """
    match = MARK.search((process / "environ").read_bytes())
    return match[1].decode(errors="replace") if match else ""


def end_with_parent(number: int = signal.SIGTERM, parent: int | None = None) -> None:
    """Have the kernel send this process a signal when its parent has ended (Linux).

    Args:
        parent: the parent's process id, for a new child whose parent may have ended by now.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if parent not in (None, os.getppid()):
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants of this process (Linux)."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def is_running(pid: int) -> bool:
    """Return True if a process exists and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def end_group(process: "subprocess.Popen[bytes]") -> None:
    """End a process and its group: SIGTERM, a grace period, SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        signal_group(process, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
            return


def signal_group(process: "subprocess.Popen[bytes]", number: int) -> None:
    """Send a signal to a process and its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def wait_for_end(run: str) -> None:
    """Wait up to GRACE_SECONDS for the end of the run's processes, because mpirun does not."""
    deadline = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < deadline and any(map(is_running, processes_of(run))):
        time.sleep(0.1)


def kill_all(run: str) -> None:
    """Kill a run's processes on this host; repeat until none is left, as some may just start."""
    deadline = time.monotonic() + GONE_SECONDS
    while kill_rest(run) and time.monotonic() < deadline:
        time.sleep(0.1)


def kill_rest(run: str) -> list[int]:
    """Kill a run's remaining processes on this host; return the process ids."""
    killed = []
    for pid in processes_of(run):
        with contextlib.suppress(OSError):  # the process has ended
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
    return killed
