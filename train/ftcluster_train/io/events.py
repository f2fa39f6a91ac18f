"""Writes and reads events.jsonl; `ftcluster_common.protocol.events` lists kinds and fields.

The output of scripts is written to OUTPUT instead, a log of limited size with lines of the same
form.
"""

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from ftcluster_common.protocol.events import is_event
from ftcluster_common.protocol.formats import EVENTS as EVENTS_KIND
from ftcluster_common.protocol.formats import FORMAT

EVENTS, OUTPUT = "events.jsonl", "output.jsonl"
END = "end"
KIND = re.compile(rb'\{"event": "(\w+)"')
LAST_SECOND = 1e11  # largest valid time (year 5138), in seconds since 1970
TAIL_BYTES = 64 << 10  # bytes read at each end of a file; more if events are long
LEAST_LINES, MOST_TAIL_BYTES = 8, 4 << 20  # an event `communication` takes 27 bytes per rank
MOST_BYTES = 4 << 20  # maximum new bytes to read whole; of more, only both ends are read


def event_line(event: str, **fields: Any) -> bytes:
    """Return one event with the current time, as a line.

    Raises:
        ValueError: the fields do not match `ftcluster_common.protocol.events`.
    """
    if not is_event(event, fields):
        raise ValueError(f"not an event '{event}': {fields}")
    content = {"event": event, "time": round(time.time(), 3), **fields}
    return json.dumps(content).encode() + b"\n"


def place_and_message(error: Mapping[str, Any]) -> str:
    """Return an error's message with its host and rank, naming each only once."""
    host, message = error["host"], error["message"]
    if error["rank"] is not None:
        return f"rank {error['rank']} on {host}: {message}"
    named = re.match(rf"{re.escape(host)}(?![\w-]|\.\w)", message)
    return message if named else f"{host}: {message}"


class EventWriter:
    """Appends each event as one whole line, even after a line that a crash has truncated.

    Args:
        also: function that is called with kind and fields of each written event.
    """

    def __init__(
        self, run_dir: Path, also: Callable[[str, Mapping[str, Any]], None] = lambda *_: None
    ) -> None:
        self._path, self._also = run_dir / EVENTS, also

    def write(self, event: str, **fields: Any) -> None:
        """Append one event with the current time.

        Raises:
            OSError: the event cannot be written; no part of it is left in the file.
            ValueError: the fields do not match `ftcluster_common.protocol.events`.
        """
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            size = os.fstat(descriptor).st_size
            # the first event carries the format of the file
            numbered = fields if size else {FORMAT: EVENTS_KIND.format, **fields}
            data = event_line(event, **numbered)
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
            if event == END:  # synced, because a run without this event is restarted after a crash
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._also(event, fields)


class EventTail:
    """Reads the events that a run appends; of very many new events, it skips the middle ones.

    Args:
        from_end: True to skip events that exist already.
    """

    def __init__(self, run_dir: Path, from_end: bool = False) -> None:
        self._path, self._offset = run_dir / EVENTS, 0
        if from_end:
            with contextlib.suppress(OSError):  # the file does not exist yet
                self._offset = self._path.stat().st_size

    def read(self) -> list[dict[str, Any]]:
        """Return the events that are new since the last call, without damaged events.

        Raises:
            OSError: the file cannot be read.
        """
        with self._path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size - self._offset > MOST_BYTES:
                lines, self._offset = _ends(file)
            else:
                file.seek(self._offset)
                data = file.read(MOST_BYTES)
                whole = data[: data.rfind(b"\n") + 1]
                self._offset += len(whole)
                lines = whole.split(b"\n")
        return [event for line in lines for event in _event(line)]


def _event(line: bytes) -> list[dict[str, Any]]:
    """Return a list with the event of a line; an empty list if the line is damaged."""
    with contextlib.suppress(ValueError, RecursionError):
        event = json.loads(line)
        if isinstance(event, dict) and isinstance(event.get("event"), str):
            at = event.get("time")
            if isinstance(at, int | float) and 0 <= at < LAST_SECOND:
                return [event]
    return []


def read_events(run_dir: Path) -> list[dict[str, Any]]:
    """Return the first and the last events of a run, without damaged or incomplete lines."""
    return [event for line in _lines(run_dir) for event in _event(line)]


def _lines(run_dir: Path) -> list[bytes]:
    try:
        with (run_dir / EVENTS).open("rb") as file:
            return _ends(file)[0]
    except OSError:
        return []


def _ends(file: BinaryIO) -> tuple[list[bytes], int]:
    """Return the whole lines in the first and last TAIL_BYTES of a file, and their end offset.

    If lines are long, the function reads more, so that it finds at least LEAST_LINES lines at the
    end.
    """
    data = file.read(TAIL_BYTES)
    size = os.fstat(file.fileno()).st_size
    if size > TAIL_BYTES:
        data = data[: data.rfind(b"\n") + 1]
        tail, bytes_read = b"", TAIL_BYTES
        while tail.count(b"\n") < LEAST_LINES and bytes_read <= MOST_TAIL_BYTES:
            file.seek(max(len(data), size - bytes_read))
            tail = file.read(2 * bytes_read)
            bytes_read *= 2
        data += tail
    whole = data[: data.rfind(b"\n") + 1]
    return whole.split(b"\n"), file.tell() - len(data) + len(whole)


def last_events(run_dir: Path) -> dict[str, dict[str, Any]]:
    """Return the last event of each kind among the events of `read_events`, the latest first.

    The key "" contains the very first event. Only one line of each kind is parsed.
    """
    lines = _lines(run_dir)
    events: dict[str, dict[str, Any]] = {}
    for line in reversed(lines):
        kind = KIND.match(line)
        if not (kind and kind[1].decode() in events):
            for event in _event(line):
                events.setdefault(event["event"], event)
    first = next((event for line in lines for event in _event(line)), None)
    return {**events, "": first} if first else {}


def has_ended(run_dir: Path) -> bool:
    """Return True if the last events of a run include its end."""
    return END in last_events(run_dir)


def seconds_since_first(run_dir: Path) -> float:
    """Return the seconds since a run's first event; 0 if there are no events."""
    events = last_events(run_dir)
    return max(0.0, time.time() - events[""]["time"]) if events else 0.0
