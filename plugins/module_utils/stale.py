# Apache-2.0 (see LICENSE)
"""Finds what has been left behind, by the time that the machine ran and not by its clock.

A clock that is set forward makes everything look old, also what is being written.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ansible_collections.ftcluster.cluster.plugins.module_utils.boot import boot_id
from ansible_collections.ftcluster.cluster.plugins.module_utils.safe_path import (
    read_text,
    write_text,
)

RECORD = ".unchanged.json"


def last_change(folder: Path) -> int:
    """When something in a folder was written last, by the clock: one large file may take hours."""
    times = [folder.lstat().st_mtime_ns]
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # it is being removed
            times.append(path.lstat().st_mtime_ns)
    return max(times)


def running_seconds() -> float:
    """The seconds since the machine was started, also those that it slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def unchanged(folders: Iterable[Path], parent: str | Path, seconds: float) -> list[Path]:
    """The folders in which nothing was written for so long, as calls since this boot have seen.

    Args:
        folders: all of them below `parent`, where the record of what was seen is kept; where it
            cannot be, none is found.
    """
    record, boot, now = Path(parent) / RECORD, boot_id(), running_seconds()
    before = _read(record)
    seen, found = {}, []
    for folder in folders:
        with contextlib.suppress(FileNotFoundError):
            state = [boot, last_change(folder)]
            *same, since = before.get(folder.name, [None, None, now])
            since = since if same == state else now
            if now - since > seconds:
                found.append(folder)
            else:
                seen[folder.name] = [*state, since]
    if seen != before:
        with contextlib.suppress(OSError):
            write_text(record, json.dumps(seen) + "\n", 0o600)
    return found


def _read(record: Path) -> dict[str, list[Any]]:
    """What was seen, each as [boot, last change, seconds since the boot]; empty if damaged."""
    try:
        found = json.loads(read_text(record) or "")
        good = isinstance(found, dict) and all(
            isinstance(one, list) and len(one) == 3 and isinstance(one[2], (int, float))
            for one in found.values()
        )
        return found if good else {}
    except (OSError, ValueError, TypeError, RecursionError):
        return {}
