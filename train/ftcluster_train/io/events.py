"""Writes events.jsonl; `ftcluster_common.events` has the kinds of events and their fields."""

import json
import os
import time
from pathlib import Path
from typing import Any

from ftcluster_common.events import is_event

EVENTS = "events.jsonl"
TAIL_BYTES = 4096  # more than the event `end` takes


class EventWriter:
    """Appends events, each as one whole line."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / EVENTS

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


def has_ended(run_dir: Path) -> bool:
    """Whether the last event of a run is its end."""
    try:
        with (run_dir / EVENTS).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            last = file.read().rstrip(b"\n").rpartition(b"\n")[2]
        return bool(json.loads(last)["event"] == "end")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def seconds_since_first(run_dir: Path) -> float:
    """How long ago a run's first event was; 0 where there is none."""
    try:
        with (run_dir / EVENTS).open(encoding="utf-8") as file:
            return max(0.0, time.time() - float(json.loads(file.readline())["time"]))
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0
