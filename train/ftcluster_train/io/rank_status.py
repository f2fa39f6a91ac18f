"""What a process does at the moment: its report to its guardian, its Python stacks if it hangs.

Standard library only.
"""

import contextlib
import faulthandler
import json
import os
import re
import signal
from pathlib import Path

VARIABLE = "FTCLUSTER_PROGRESS_FD"  # set by the guardian
SCRIPT = "script"  # what a rank does that runs a user's script
STACK_SIGNAL = signal.SIGRTMIN + 5  # users' scripts have SIGUSR1 and SIGUSR2 for themselves
STDERR = 2


def report(step: int, doing: str, pid: int | None = None) -> None:
    """Report loading, forward, all-reduce, evaluating, saving or SCRIPT, and the step.

    It never waits, and does nothing without a guardian.

    Args:
        pid: the process that does it, if not this one.
    """
    descriptor = os.environ.get(VARIABLE)
    if descriptor:
        with contextlib.suppress(OSError):  # the guardian does not read, or is gone
            said = {"step": step, "doing": doing, **({"pid": pid} if pid else {})}
            os.write(int(descriptor), json.dumps(said).encode() + b"\n")


def keep_from_children() -> None:
    """Have programs that this process executes report nothing."""
    descriptor = os.environ.pop(VARIABLE, None)
    if descriptor:
        os.set_inheritable(int(descriptor), False)


def write_stacks_on_signal() -> None:
    """Have this process write the stacks of its threads when it gets STACK_SIGNAL."""
    faulthandler.register(STACK_SIGNAL, STDERR)


def ask_for_stacks(pid: int) -> bool:
    """Have a process write its stacks, unless the signal would end it; returns whether it does."""
    with contextlib.suppress(OSError):  # it has ended
        status = Path(f"/proc/{pid}/status").read_text()
        caught = re.search(r"^SigCgt:\s*(\w+)", status, re.MULTILINE)
        if caught and int(caught[1], 16) >> (STACK_SIGNAL - 1) & 1:
            os.kill(pid, STACK_SIGNAL)
            return True
    return False
