# Apache-2.0 (see LICENSE)
"""Reports why a signal has ended a program of this host."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

COUNTERS = "/proc/vmstat"
OUT_OF_MEMORY = (
    "was killed by the kernel: the host is out of memory; end other programs there, or add memory"
)


def memory_kills() -> int:
    """Return how many processes the kernel has killed because memory was short, or 0."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(COUNTERS).read_text(encoding="ascii").splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0


def why_killed(code: int, short_of_memory: bool) -> str:
    """Return a verb phrase about the signal that ended a program; "" if none did.

    Args:
        code: exit code of the program, as subprocess returns it.
        short_of_memory: True if the kernel killed a process to free memory while the program ran.
    """
    if code >= 0:
        return ""
    if code == -signal.SIGKILL and short_of_memory:
        return OUT_OF_MEMORY
    with contextlib.suppress(ValueError):
        return f"was killed by signal {-code} ({signal.Signals(-code).name})"
    return f"was killed by signal {-code}"
