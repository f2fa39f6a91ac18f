# Apache-2.0 (see LICENSE)
"""A lock on a folder, for work that only one process may do in the folder at a time.

Any user who can open a file can lock it. Therefore the lock is a file that only this user may open.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from ansible_collections.ftcluster.cluster.plugins.module_utils.safe_path import (
    AGAIN,
    RefusedPath,
    opened_parent,
    user_name,
)

LOCK = ".alone"
FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextlib.contextmanager
def alone_in(folder: str | Path, seconds: float = 300) -> Iterator[None]:
    """Hold the lock of a folder in this context.

    Raises:
        OSError: the lock's file cannot be opened, or is not a regular file.
        ValueError: another process still holds the lock after `seconds`.
    """
    path = Path(folder) / LOCK
    with opened_parent(path, follow=False) as (parent, name):
        descriptor = os.open(name, FLAGS, 0o600, dir_fd=parent)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise RefusedPath(path, "is not a regular file", AGAIN)
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    who = ", ".join(lock_holders(descriptor)) or "another setup"
                    raise ValueError(
                        f"{who} has locked {folder} for more than {seconds} s; wait until it ends, "
                        "or end it"
                    ) from None
                time.sleep(0.1)
        yield
    finally:
        os.close(descriptor)


def lock_holders(descriptor: int, processes: Path = Path("/proc")) -> list[str]:
    """Return the processes that hold a lock (flock) on an open file, such as "process 7 of root".

    The holder may be anyone: a user who can open a folder can lock it. The kernel lists all locks.
    """
    state = os.fstat(descriptor)
    device = f"{os.major(state.st_dev):02x}:{os.minor(state.st_dev):02x}"
    try:
        lines = (processes / "locks").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
    found = set()
    for words in map(str.split, lines):
        if words[1:2] == ["FLOCK"] and words[5:6] == [f"{device}:{state.st_ino}"]:
            found.add(words[4])
    return [_described(processes / pid) for pid in sorted(found) if (processes / pid).exists()]


def _described(process: Path) -> str:
    try:
        return f"process {process.name} of {user_name(process.stat().st_uid)}"
    except OSError:
        return f"process {process.name}"
