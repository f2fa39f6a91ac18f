# Apache-2.0 (see LICENSE)
"""The id of a machine's boot."""

from __future__ import annotations

from pathlib import Path

BOOT_ID = "/proc/sys/kernel/random/boot_id"


def boot_id() -> str:
    """Return the kernel's random id of this boot."""
    return Path(BOOT_ID).read_text(encoding="ascii").strip()
