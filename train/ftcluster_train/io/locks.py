"""Locks on open files and folders (flock), which the kernel frees when their process ends.

On a file system without locks, every attempt succeeds. Standard library only.
"""

import contextlib
import fcntl
import time
from collections.abc import Callable

EXCLUSIVE, SHARED = fcntl.LOCK_EX, fcntl.LOCK_SH


def try_lock(descriptor: int, kind: int) -> bool:
    """Lock an open file; return False if another process holds the lock."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks
    return True


def unlock(descriptor: int) -> None:
    """Free the lock of an open file."""
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def lock_within(
    descriptor: int, kind: int, limit_seconds: Callable[[], float], pause_seconds: float
) -> bool:
    """Lock an open file; return False if another process holds the lock for too long.

    Args:
        limit_seconds: function that returns the maximum wait in seconds; called after each failed
            attempt.
        pause_seconds: time between two attempts in seconds.
    """
    began = time.monotonic()
    while not try_lock(descriptor, kind):
        if time.monotonic() - began > limit_seconds():
            return False
        time.sleep(pause_seconds)
    return True
