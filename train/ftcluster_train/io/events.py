"""Writes events.jsonl; `ftcluster_common.events` has the kinds of events and their fields."""

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

from ftcluster_common.events import is_event

EVENTS = "events.jsonl"
END = "end"
LAST_SECOND = 1e11  # in the year 5138; seconds since 1970
TAIL_BYTES = 64 << 10  # of a file; an event is shorter


class EventWriter:
    """Appends events, each as one whole line, also after a line that a crash has cut."""

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
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                data = b"\n" + data
            try:
                written = os.write(descriptor, data)
            except OSError:
                os.ftruncate(descriptor, size)
                raise
            if written < len(data):
                os.ftruncate(descriptor, size)
                raise OSError(28, "No space left on device", str(self._path))
            if event == END:  # a run whose end is lost would be started again
                os.fsync(descriptor)
        finally:
            os.close(descriptor)


class EventReader:
    """Reads the events of a run that goes on; without those with the output of a script.

    Args:
        from_end: leave out those that are there already.
    """

    def __init__(self, run_dir: Path, from_end: bool = False) -> None:
        self._path, self._offset = run_dir / EVENTS, 0
        if from_end:
            with contextlib.suppress(OSError):  # there is none yet
                self._offset = self._path.stat().st_size

    def read(self) -> list[dict[str, Any]]:
        """The events since the last call; leaves out damaged ones.

        Raises:
            OSError: the file cannot be read.
        """
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        events = []
        for line in whole.split(b"\n"):
            if not line.startswith(b'{"event": "output"'):
                events += _event(line)
        return events


def _event(line: bytes) -> list[dict[str, Any]]:
    """The event of a line; none where it is damaged."""
    with contextlib.suppress(ValueError, RecursionError):
        event = json.loads(line)
        if isinstance(event, dict) and isinstance(event.get("event"), str):
            at = event.get("time")
            if isinstance(at, int | float) and 0 <= at < LAST_SECOND:
                return [event]
    return []


def read_events(run_dir: Path) -> list[dict[str, Any]]:
    """The first and the last events of a run, without lines that are damaged or not whole yet."""
    try:
        with (run_dir / EVENTS).open("rb") as file:
            data = file.read(TAIL_BYTES)
            size = os.fstat(file.fileno()).st_size
            if size > TAIL_BYTES:
                data = data[: data.rfind(b"\n") + 1]
                file.seek(max(len(data), size - TAIL_BYTES))
                data += file.read()
    except OSError:
        return []
    whole = data[: data.rfind(b"\n") + 1]
    return [event for line in whole.split(b"\n") for event in _event(line)]


def has_ended(run_dir: Path) -> bool:
    """Whether a run has an end among its last events."""
    return any(event["event"] == END for event in read_events(run_dir))


def seconds_since_first(run_dir: Path) -> float:
    """How long ago a run's first event was; 0 where there is none."""
    events = read_events(run_dir)
    return max(0.0, time.time() - events[0]["time"]) if events else 0.0
