"""Read a run's events.jsonl. The head is not trusted: each line is checked before use."""

import contextlib
import fcntl
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from ansible_collections.ftcluster.cluster.plugins.plugin_utils.samples import WHOLE_BYTES, samples

from ftcluster.text.printable import printable
from ftcluster_common.protocol.events import EVENTS, is_event
from ftcluster_common.protocol.formats import EVENTS as EVENTS_KIND
from ftcluster_common.protocol.formats import opened

MOST_BYTES = 4 << 20  # maximum length of an accepted line; events are shorter
PIPE_BYTES = 1 << 20  # requested capacity of the output pipe
LAST_SECOND = 1e11  # latest accepted time, in the year 5138
# fields that become infinite or NaN if a training diverges
MAY_DIVERGE = ("grad_norm", "loss", "metrics")
# fields that may have several lines; "text" is the output of a language model
MAY_HAVE_LINES = ("hint", "message", "text")


def read_event_line(line: bytes) -> dict[str, Any] | None:
    """Return the event that a line contains; None if the line is not valid.

    Events of unknown types, from later versions of ftcluster, are valid. Control characters in
    texts are escaped, except in the output of a user's script. Only the fields in MAY_HAVE_LINES
    may have several lines, because a second line of another field could look like ftcluster's own
    output.
    """
    try:
        event: dict[str, Any] = json.loads(line)
        kind, at = event["event"], event["time"]
        right = kind not in EVENTS or is_event(kind, event)
        right = right and isinstance(kind, str) and isinstance(at, int | float)
        right = right and 0 <= at < LAST_SECOND and all(map(_is_finite, event.items()))
        safe: dict[str, Any] = event if kind == "output" else printable(event)
        right = right and (kind == "output" or all(map(_is_one_line, event.items())))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return safe if right else None


def _refusal(first: Mapping[str, Any]) -> str:
    """Return the reason why the events after the first event are not shown; "" if none."""
    try:
        opened(EVENTS_KIND, first)
    except ValueError as error:
        return str(error)
    return ""


def _is_finite(item: tuple[str, Any]) -> bool:
    name, value = item
    if name in MAY_DIVERGE:
        return True
    if isinstance(value, float):
        return math.isfinite(value)
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(math.isfinite(number) for number in values if isinstance(number, float))


def _is_one_line(item: tuple[str, Any]) -> bool:
    name, value = item
    return name in MAY_HAVE_LINES or not isinstance(value, str) or "\n" not in value


class EventReader:
    """A reader that returns each event of a growing file once.

    The reader skips damaged lines, and reports this once with a notice among the events. It reads
    only parts of an existing file that is long or has a hole, and reports this with a notice too.

    Attributes:
        offset: position in the file up to which events have been read, in bytes.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.offset = 0
        self._line = 0  # number of the last complete line
        self._time = 0.0
        self._too_long = False  # True while skipping a line that is too long
        self._noticed_damage = False
        self._refused = False  # a newer ftcluster has written the file

    def new_events(self) -> list[dict[str, Any]]:
        """Return the events whose lines were completed since the last call."""
        events: list[dict[str, Any]] = []
        with self._path.open("rb") as file:
            parts = list(_parts(file, self.offset))
            for start, end in parts if len(parts) > 1 else []:
                file.seek(start)
                data = file.read(end - start)
                first = data.find(b"\n") + 1 if start else 0
                if end == parts[-1][1]:
                    events.append(self._long(parts))
                events += self._events(data[first : data.rfind(b"\n") + 1])
                self.offset = start + data.rfind(b"\n") + 1
            file.seek(self.offset)
            while data := file.read(MOST_BYTES):
                whole = data[: data.rfind(b"\n") + 1]
                if not whole and len(data) < MOST_BYTES:
                    break
                events += self._events(whole)
                if not whole:
                    self._too_long, whole = True, data
                self.offset += len(whole)
                file.seek(self.offset)
        return events

    def _long(self, parts: Sequence[tuple[int, int]]) -> dict[str, Any]:
        read, size = sum(end - start for start, end in parts), parts[-1][1]
        message = f"the events are long, so only {read >> 10:,} of {size >> 10:,} kB were read"
        return {"event": "notice", "time": self._time, "message": message}

    def _events(self, whole: bytes) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        # a hole in the file is read as zeros
        for line in (raw.strip(b"\0") for raw in whole.split(b"\n")[:-1]):
            self._line += 1
            event = None if self._too_long else read_event_line(line)
            damaged = bool(line) or self._too_long
            self._too_long = False
            if event and self._line == 1 and (why := _refusal(event)):
                self._refused = True
                message = f"{self._path.name} of the head {why}"
                events.append({"event": "notice", "time": event["time"], "message": message})
            if self._refused:
                continue
            if event:
                self._time = event["time"]
                events.append(event)
            elif damaged and not self._noticed_damage:
                self._noticed_damage = True
                message = (
                    f"line {self._line} of {self._path.name} on the head is damaged; it and "
                    f"further damaged lines are skipped: {line[:100]!a}"
                )
                events.append({"event": "notice", "time": self._time, "message": message})
        return events


def _parts(file: BinaryIO, offset: int) -> Iterator[tuple[int, int]]:
    """Yield the beginning and the end of each part of the file to read, starting at `offset`.

    Holes are skipped. If a part is longer than WHOLE_BYTES, only samples of the part are read.
    """
    end = os.fstat(file.fileno()).st_size
    while offset < end:
        try:
            start = os.lseek(file.fileno(), offset, os.SEEK_DATA)
            offset = os.lseek(file.fileno(), start, os.SEEK_HOLE)
        except OSError:  # the rest is a hole, or the file system does not report holes
            start, offset = offset, end
        if offset - start > WHOLE_BYTES:
            yield from ((start + at, start + at + count) for at, count in samples(offset - start))
        else:
            yield start, offset


class OutputPipe:
    """A named pipe through which the playbook passes the output of a script to this command."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "output"
        os.mkfifo(self.path, 0o600)
        # opened for writing too, so that reading never reaches the end of the file
        self._pipe = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)
        with contextlib.suppress(OSError):  # the user's limit for pipe capacity is reached
            fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._rest = b""

    def new_events(self) -> list[dict[str, Any]]:
        """Return the output events whose lines were completed since the last call."""
        events: list[dict[str, Any]] = []
        with contextlib.suppress(BlockingIOError):  # the pipe is empty
            while data := os.read(self._pipe, PIPE_BYTES):
                *lines, self._rest = (self._rest + data).split(b"\n")
                events += filter(None, map(read_event_line, lines))
                if len(self._rest) > MOST_BYTES:
                    self._rest = b""
        return [event for event in events if event["event"] == "output"]

    def begin(self) -> None:
        """Request the whole output; by default, the pipe gets only its last part and new output."""
        self.path.with_name(f"{self.path.name}.at").write_text('[0, "0"]')

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._pipe)
