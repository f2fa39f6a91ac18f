"""A run's hold on its stack: a shared lock on the stack's folder.

Setup takes the same lock alone before it changes or removes a stack. The kernel gives it back when
the last process that has it is gone, however it ended.

Standard library only: it is in every rank's way.
"""

import fcntl
import os
import socket
import sys
import time
from pathlib import Path

from ftcluster_train.errors import TrainError

WAIT_SECONDS = 20.0  # a setup that replaces the node package takes some


def hold_stack(stack: Path, inherited: bool = False) -> None:
    """Keep a stack as it is for as long as this process lives.

    Args:
        stack: its folder.
        inherited: whether the lock is also that of what this process becomes or starts.

    Raises:
        TrainError: the stack is gone, or a setup is changing it for longer than WAIT_SECONDS.
    """
    host = socket.gethostname()
    gone = TrainError(f"the stack {stack} is gone from {host}", "run ftcluster setup")
    try:
        descriptor = os.open(stack, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        raise gone from None
    os.set_inheritable(descriptor, inherited)
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise TrainError(
                    f"a setup is changing the stack {stack} on {host}",
                    "wait for it to end, then start the run again",
                ) from None
            time.sleep(0.1)
        except OSError:
            return  # a file system without locks
    try:
        same = os.path.samestat(os.fstat(descriptor), stack.stat())
    except OSError:
        same = False
    if not same:  # removed, or made anew, meanwhile
        os.close(descriptor)
        raise gone


def own_stack() -> Path:
    """The folder of the environment that this Python runs from."""
    return Path(sys.prefix)
