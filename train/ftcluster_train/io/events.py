"""Writes events.jsonl; `ftcluster_common.protocol.events` has the kinds of events and their fields.

What a script prints is in OUTPUT instead, in the same form: a log, which does not grow for ever.
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
LAST_SECOND = 1e11  # in the year 5138; seconds since 1970
TAIL_BYTES = 64 << 10  # of a file, and more where an event is as long
LEAST_LINES, MOST_TAIL_BYTES = 8, 4 << 20  # `communication` has 27 bytes a rank
MOST_BYTES = 4 << 20  # that are read at once; of more, both ends


def event_line(event: str, **fields: Any) -> bytes:
    """One event with the current time, as a line.

    Raises:
        ValueError: it is not what `ftcluster_common.protocol.events` says of its kind.
    """
    if not is_event(event, fields):
        raise ValueError(f"not an event '{event}': {fields}")
    content = {"event": event, "time": round(time.time(), 3), **fields}
    return json.dumps(content).encode() + b"\n"


class EventWriter:
    """Appends events, each as one whole line, also after a line that a crash has cut.

    Args:
        also: gets each event that was written, its kind and its fields.
    """

    def __init__(
        self, run_dir: Path, also: Callable[[str, Mapping[str, Any]], None] = lambda *_: None
    ) -> None:
        self._path, self._also = run_dir / EVENTS, also

    def write(self, event: str, **fields: Any) -> None:
        """Append one event with the current time.

        Raises:
            OSError: it cannot be written; nothing of it is left in the file.
            ValueError: it is not what `ftcluster_common.protocol.events` says of its kind.
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
            if event == END:  # a run whose end is lost would be started again
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._also(event, fields)


class EventTail:
    """Reads the events that a run appends; of many new ones only the first and the last.

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
    return [event for line in _lines(run_dir) for event in _event(line)]


def _lines(run_dir: Path) -> list[bytes]:
    try:
        with (run_dir / EVENTS).open("rb") as file:
            return _ends(file)[0]
    except OSError:
        return []


def _ends(file: BinaryIO) -> tuple[list[bytes], int]:
    """The whole lines among the first and last TAIL_BYTES of a file, and where the last ends.

    Of long lines more is read: LEAST_LINES of them at the end.
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
    """The last event of each kind, the latest first, of those that `read_events` reads.

    The first of all has the key "". Of each kind one line is parsed, not all of them.
    """
    lines = _lines(run_dir)
    found: dict[str, dict[str, Any]] = {}
    for line in reversed(lines):
        kind = KIND.match(line)
        if not (kind and kind[1].decode() in found):
            for event in _event(line):
                found.setdefault(event["event"], event)
    first = next((event for line in lines for event in _event(line)), None)
    return {**found, "": first} if first else {}


def has_ended(run_dir: Path) -> bool:
    """Whether a run has an end among its last events."""
    return END in last_events(run_dir)


def seconds_since_first(run_dir: Path) -> float:
    """How long ago a run's first event was; 0 where there is none."""
    events = last_events(run_dir)
    return max(0.0, time.time() - events[""]["time"]) if events else 0.0
