# Apache-2.0 (see LICENSE)
"""Finds old leftovers by the machine's uptime instead of its clock.

If the clock is set forward, even files that are being written look old.
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
    """Return the clock time of the last write to any file in a folder."""
    times = [folder.lstat().st_mtime_ns]
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # the folder is being removed
            times.append(path.lstat().st_mtime_ns)
    return max(times)


def running_seconds() -> float:
    """Return the seconds since the machine booted, including time asleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def unchanged(folders: Iterable[Path], parent: str | Path, seconds: float) -> list[Path]:
    """Return the folders in which nothing was written for `seconds`, according to earlier calls.

    Args:
        folders: folders below `parent`.
        parent: folder with the record of earlier calls. Without a record, the result is empty.
        seconds: uptime since the last write.
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
    """Return [boot id, last change, uptime in seconds] by folder; {} if the record is damaged."""
    try:
        found = json.loads(read_text(record) or "")
        good = isinstance(found, dict) and all(
            isinstance(one, list) and len(one) == 3 and isinstance(one[2], (int, float))
            for one in found.values()
        )
        return found if good else {}
    except (OSError, ValueError, TypeError, RecursionError):
        return {}
