"""Ends the processes that Ansible started, and measures their memory."""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

GRACE_SECONDS = 5.0  # time between SIGTERM and SIGKILL
POLL_SECONDS = 0.1
PR_SET_CHILD_SUBREAPER = 36  # Linux, include/uapi/linux/prctl.h


def descendants(root: int) -> list[int]:
    """Return the ids of all descendants of the process `root`, even in other sessions."""
    children = _children()
    pids: list[int] = []
    pending = [root]
    while pending:
        below = children.get(pending.pop(), [])
        pids += below
        pending += below
    return pids


def _children() -> dict[int, list[int]]:
    """Return the ids of the children of each process, by the id of the process."""
    children: dict[int, list[int]] = {}
    # the pattern [0-9]*/stat fails if a process ends during the search
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "stat").read_text()
        except OSError:
            continue  # the process has ended
        parent = int(text.rpartition(")")[2].split()[1])
        children.setdefault(parent, []).append(int(folder.name))
    return children


def memory_of(program: str) -> int:
    """Return the memory in bytes of all descendants of this process that run `program`.

    Forked processes share memory with the first process, so only their additional memory counts.
    """
    sizes = [size for pid in descendants(os.getpid()) if (size := _resident(pid, program))]
    return sizes[0] + sum(max(0, size - sizes[0]) for size in sizes) if sizes else 0


def _resident(pid: int, program: str) -> int:
    """Return the memory of a process in bytes; 0 if it ended or runs another program."""
    folder = Path(f"/proc/{pid}")
    try:
        words = os.fsdecode((folder / "cmdline").read_bytes()).split("\0")
        if not any(Path(word).name == program for word in words):
            return 0
        return int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def end_descendants() -> None:
    """End all descendants of this process: SIGTERM, a grace period, SIGKILL."""
    children = _children().get(os.getpid(), [])
    with _adopting_orphans():
        _end_descendants()
    for pid in set(_children().get(os.getpid(), [])) - set(children):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _end_descendants() -> None:
    asked: set[int] = set()
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < deadline:
            # search again each time, because a descendant may have just started another process
            running = {pid for pid in descendants(os.getpid()) if is_running(pid)}
            if not running:
                return
            for pid in running - asked if number == signal.SIGTERM else running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            asked |= running
            time.sleep(POLL_SECONDS)


@contextlib.contextmanager
def _adopting_orphans() -> Iterator[None]:
    """Make this process adopt processes whose parent ended."""
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0)


def is_running(pid: int) -> bool:
    """Return True if a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
