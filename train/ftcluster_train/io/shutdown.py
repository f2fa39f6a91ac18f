"""Detects an orderly shutdown of this host. Standard library only."""

import contextlib
import subprocess
from pathlib import Path

SYSTEMD = Path("/run/systemd/system")  # exists if systemd runs this host, sd_booted(3)
INIT = Path("/proc/1/comm")
LAST_INIT = "systemd-shutdow"  # name of process 1 in the last phase, cut to 15 characters
ANSWER_SECONDS = 2.0
UNKNOWN = ("", "unknown", "offline")  # see `is-system-running` in systemctl(1)


def is_stopping() -> bool | None:
    """Return True if this host is shutting down, and None if its systemd does not respond.

    The bus that systemctl uses ends before the last processes end, so the function first reads the
    name of process 1. A host without systemd counts as running.
    """
    if not SYSTEMD.is_dir():
        return False
    with contextlib.suppress(OSError):
        if INIT.read_text(encoding="ascii", errors="replace").strip() == LAST_INIT:
            return True
    try:
        done = subprocess.run(
            ["systemctl", "is-system-running"], stdin=subprocess.DEVNULL, capture_output=True,
            timeout=ANSWER_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    state = done.stdout.decode(errors="replace").strip()
    return None if state in UNKNOWN else state == "stopping"
