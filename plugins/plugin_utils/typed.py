# Apache-2.0 (see LICENSE)
"""Lines that a user types on the control node for a waiting run, such as prompts."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

NAME = "prompts.jsonl"  # file in the run's folder, which a rank creates and finally removes
AWAITED = "answered"  # event after which a run waits for lines
# interval between two signs that the user is still connected, see `SESSION_SECONDS`
SIGN_SECONDS = 15.0
SIGN = b"\n"
LOOK_SECONDS = 0.1


class Typed:
    """A reader of a growing file on the control node that returns each new line once.

    Attributes:
        awaited: True if the run waits for a line.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0
        self._sent = time.monotonic()
        self.awaited = False

    def see(self, kinds: Iterable[str]) -> None:
        """Set `awaited` from the kinds of the run's new events."""
        for kind in kinds:
            self.awaited = kind == AWAITED

    def to_send(self) -> bytes:
        """Return new lines, or SIGN if it is due, or b"".

        While the run waits for a line, wait for new lines until SIGN is due.
        """
        until = self._sent + SIGN_SECONDS
        while not (data := self._new_lines()) and self.awaited and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
        if data:
            self.awaited = False
        elif time.monotonic() >= until:
            data = SIGN
        self._sent = time.monotonic() if data else self._sent
        return data

    def _new_lines(self) -> bytes:
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        data = data[: data.rfind(b"\n") + 1]
        self._offset += len(data)
        return data
