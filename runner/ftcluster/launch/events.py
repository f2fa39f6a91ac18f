"""Reads a run's events.jsonl, which the head writes: each line is checked before it is used."""

import json
from pathlib import Path
from typing import Any

from ftcluster.errors import FtclusterError
from ftcluster.text.printable import printable
from ftcluster_common.events import EVENTS, is_event


def read_event_line(line: bytes) -> dict[str, Any]:
    """One event; kinds of a later version are not checked.

    Text is made safe for a terminal, but for what a user's own script prints.

    Raises:
        FtclusterError: it is not an event, or not one of its kind; shows it.
    """
    try:
        event: dict[str, Any] = json.loads(line)
        kind = event["event"]
        right = kind not in EVENTS or is_event(kind, event)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        right = False
    if not right:
        raise FtclusterError(f"the head sent an invalid event: {line[:200]!a}")
    found: dict[str, Any] = event if kind == "output" else printable(event)
    return found


class EventReader:
    """Returns each event of a file that grows once.

    Attributes:
        offset: how many bytes have been read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.offset = 0

    def new_events(self) -> list[dict[str, Any]]:
        """Those whose lines were completed since the last call."""
        with self._path.open("rb") as file:
            file.seek(self.offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        return [read_event_line(line) for line in whole.splitlines()]
