"""Ends the processes that Ansible has started."""

import contextlib
import os
import signal
import time
from pathlib import Path

GRACE_SECONDS = 5.0  # between SIGTERM and SIGKILL
POLL_SECONDS = 0.1


def descendants(root: int) -> list[int]:
    """Process ids of children, grandchildren, ... of `root`, also in sessions of their own."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue  # it has ended
        parent = int(text.rpartition(")")[2].split()[1])
        children.setdefault(parent, []).append(int(stat.parent.name))
    found: list[int] = []
    pending = [root]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return found


def end_descendants(root: int) -> None:
    """End all descendants of a process: SIGTERM, a grace period, SIGKILL."""
    known: set[int] = set()
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < deadline:
            # again, because one of them may have just started another
            new = set(descendants(root)) - (known if number == signal.SIGTERM else set())
            known |= new
            for pid in new if number == signal.SIGTERM else known:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            if not any(is_running(pid) for pid in known):
                return
            time.sleep(POLL_SECONDS)


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
