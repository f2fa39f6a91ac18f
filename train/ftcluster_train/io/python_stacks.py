"""The Python stacks of a process that hangs, in its stderr. Standard library only."""

import contextlib
import faulthandler
import os
import re
import signal
from pathlib import Path

STACK_SIGNAL = signal.SIGRTMIN + 5  # users' scripts have SIGUSR1 and SIGUSR2 for themselves
STDERR = 2


def write_on_signal() -> None:
    """Have this process write the stacks of its threads when it gets STACK_SIGNAL."""
    faulthandler.register(STACK_SIGNAL, STDERR)


def ask_for(pid: int) -> bool:
    """Have a process write its stacks, unless the signal would end it; returns whether it does."""
    with contextlib.suppress(OSError):  # it has ended
        status = Path(f"/proc/{pid}/status").read_text()
        caught = re.search(r"^SigCgt:\s*(\w+)", status, re.MULTILINE)
        if caught and int(caught[1], 16) >> (STACK_SIGNAL - 1) & 1:
            os.kill(pid, STACK_SIGNAL)
            return True
    return False
