"""Errors for a user, and how a rank passes them on to the supervisor."""

import json
import os
import socket

from ftcluster_common.protocol.events import is_event
from ftcluster_common.protocol.launch import own_rank

MARKER = "FTCLUSTER-ERROR "
STOPPED_LINE = "FTCLUSTER-STOPPED"  # of rank 0, once a training has saved its state to be ended


class TrainError(Exception):
    """Something that a user can fix.

    Args:
        restartable: whether a new start of all ranks may succeed.
    """

    def __init__(self, message: str, hint: str = "", restartable: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.restartable = restartable


class TrainingStopped(Exception):
    """Every rank has ended its training after the same step, and its state is saved."""


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, or its type where that is empty."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def error_line(error: TrainError) -> str:
    """One line of a rank's output that the supervisor turns into an `error` event."""
    return MARKER + json.dumps(
        {
            "message": error.message,
            "hint": error.hint,
            "host": socket.gethostname(),
            "rank": own_rank({"PMI_RANK": "0", **os.environ}),
            "restartable": error.restartable,
        }
    )


def read_error_line(line: str) -> dict[str, object] | None:
    """The fields of an event `error`, also behind mpirun's label; None for any other line."""
    _, marker, text = line.partition(MARKER)
    if not marker:
        return None
    try:
        fields: dict[str, object] = json.loads(text)
        return fields if is_event("error", fields) else None
    except (ValueError, AttributeError, RecursionError):
        return None
