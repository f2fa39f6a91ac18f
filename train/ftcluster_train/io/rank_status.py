"""What a rank does at the moment, for its guardian. Standard library only."""

import contextlib
import json
import os

VARIABLE = "FTCLUSTER_PROGRESS_FD"  # set by the guardian
SCRIPT = "script"  # what a rank does that runs a user's script


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
