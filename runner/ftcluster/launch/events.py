"""Reads a run's events.jsonl, which the head writes: each line is checked before it is used."""

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

MOST_BYTES = 4 << 20  # of a line; an event is shorter
PIPE_BYTES = 1 << 20
LAST_SECOND = 1e11  # in the year 5138
# what a training that diverges makes infinite or NaN
MAY_DIVERGE = ("grad_norm", "loss", "metrics")
MAY_HAVE_LINES = ("hint", "message", "text")  # text: what a language model writes


def read_event_line(line: bytes) -> dict[str, Any] | None:
    """One event, or None where it is not one of its kind; those of a later version are passed on.

    Text is made safe for a terminal, but for what a user's own script prints. A folder, a host or
    what a run does is one line: further ones would look as if they were this program's own.
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
    """Return why the events after the first one are not shown; "" if they are."""
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
    return all(math.isfinite(one) for one in values if isinstance(one, float))


def _is_one_line(item: tuple[str, Any]) -> bool:
    name, value = item
    return name in MAY_HAVE_LINES or not isinstance(value, str) or "\n" not in value


class EventReader:
    """Returns each event of a file that grows once.

    Damaged lines are left out. A notice among the events says so, once. Of a long file that is
    there already, or one with a hole, parts are read, which a notice says as well.

    Attributes:
        offset: how many bytes have been read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.offset = 0
        self._line = 0  # the number of the last whole one
        self._time = 0.0
        self._too_long = False  # the line at `offset` began before it
        self._said = False
        self._refused = False  # a newer ftcluster has written the file

    def new_events(self) -> list[dict[str, Any]]:
        """Those whose lines were completed since the last call."""
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
        message = f"the events are long: {read >> 10:,} of {size >> 10:,} kB are read"
        return {"event": "notice", "time": self._time, "message": message}

    def _events(self, whole: bytes) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        for line in (one.strip(b"\0") for one in whole.split(b"\n")[:-1]):  # of a hole's end
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
            elif damaged and not self._said:
                self._said = True
                message = (
                    f"line {self._line} of {self._path.name} of the head is damaged and left out, "
                    f"as are further ones: {line[:100]!a}"
                )
                events.append({"event": "notice", "time": self._time, "message": message})
        return events


def _parts(file: BinaryIO, offset: int) -> Iterator[tuple[int, int]]:
    """Where each part of a file begins and ends that is read from `offset` on."""
    end = os.fstat(file.fileno()).st_size
    while offset < end:
        try:
            start = os.lseek(file.fileno(), offset, os.SEEK_DATA)
            offset = os.lseek(file.fileno(), start, os.SEEK_HOLE)
        except OSError:  # nothing but a hole follows, or the file system knows none
            start, offset = offset, end
        if offset - start > WHOLE_BYTES:
            yield from ((start + at, start + at + count) for at, count in samples(offset - start))
        else:
            yield start, offset


class OutputPipe:
    """What a script prints, through a named pipe in a folder, which `follow` writes to."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "output"
        os.mkfifo(self.path, 0o600)
        # for writing as well: it never ends
        self._pipe = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)
        with contextlib.suppress(OSError):  # the user has too much of them
            fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._rest = b""

    def new_events(self) -> list[dict[str, Any]]:
        """Those whose lines were completed since the last call."""
        events: list[dict[str, Any]] = []
        with contextlib.suppress(BlockingIOError):  # nothing more has come
            while data := os.read(self._pipe, PIPE_BYTES):
                *lines, self._rest = (self._rest + data).split(b"\n")
                events += filter(None, map(read_event_line, lines))
                if len(self._rest) > MOST_BYTES:
                    self._rest = b""
        return [event for event in events if event["event"] == "output"]

    def begin(self) -> None:
        """Have all output come, and not only what comes and the end of what is there."""
        self.path.with_name(f"{self.path.name}.at").write_text('[0, "0"]')

    def close(self) -> None:
        """Nothing more is wanted."""
        os.close(self._pipe)
