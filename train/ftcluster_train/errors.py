"""Errors for a person, on their way from a rank or host to the control node."""

import json
import os
import socket

MARKER = "FTCLUSTER-ERROR "


class TrainError(Exception):
    """Something a user can mend.

    Args:
        message: what is wrong, and where.
        hint: what to do about it.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def first_line(error: BaseException) -> str:
    """The first line of what an exception says, or its name where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def error_line(error: TrainError) -> str:
    """One line of a rank's output that the supervisor turns into an `error` event."""
    return MARKER + json.dumps(
        {
            "message": error.message,
            "hint": error.hint,
            "host": socket.gethostname(),
            "rank": int(os.environ.get("PMI_RANK", 0)),
        }
    )


def read_error_line(line: str) -> dict[str, object] | None:
    """The inverse; the line may have mpirun's rank label in front. None for any other line."""
    _, marker, text = line.partition(MARKER)
    if not marker:
        return None
    try:
        found: dict[str, object] = json.loads(text)
    except ValueError:
        return None
    return found
