"""Writes events.jsonl; `ftcluster_common.events` has the kinds of events and their fields."""

import json
import os
import time
from pathlib import Path
from typing import Any

from ftcluster_common.events import is_event


class EventWriter:
    """Appends events, each as one whole line."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / "events.jsonl"

    def write(self, event: str, **fields: Any) -> None:
        """Append one event with the current time.

        Raises:
            OSError: it cannot be written; nothing of it is left in the file.
            ValueError: it is not what `ftcluster_common.events` says of its kind.
        """
        if not is_event(event, fields):
            raise ValueError(f"not an event '{event}': {fields}")
        line = json.dumps({"event": event, "time": round(time.time(), 3), **fields}) + "\n"
        data = line.encode()
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            size = os.fstat(descriptor).st_size
            try:
                written = os.write(descriptor, data)
            except OSError:
                os.ftruncate(descriptor, size)
                raise
            if written < len(data):
                os.ftruncate(descriptor, size)
                raise OSError(28, "No space left on device", str(self._path))
        finally:
            os.close(descriptor)
