# Apache-2.0 (see LICENSE)
"""A lock on a folder, for what only one process may do there at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time


@contextlib.contextmanager
def alone_in(folder, seconds=300):
    """Hold the lock.

    Raises:
        ValueError: another process has held it for this many seconds.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ValueError(
                        f"another setup has held {folder} for {seconds} s; wait for it to end, "
                        "or end it"
                    ) from None
                time.sleep(0.1)
        yield
    finally:
        os.close(descriptor)
