"""Errors that users see, and the format in which ranks send errors to the supervisor."""

import json
import os
import socket

from ftcluster_common.protocol.events import is_event
from ftcluster_common.protocol.launch import own_rank

MARKER = "FTCLUSTER-ERROR "
STOPPED_LINE = "FTCLUSTER-STOPPED"  # rank 0 prints this after it has saved a stopped training run


class TrainError(Exception):
    """An error that a user can fix.

    Args:
        message: description of the problem.
        hint: advice for the user, or "".
        restartable: True if training may succeed after a restart of all ranks.
    """

    def __init__(self, message: str, hint: str = "", restartable: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.restartable = restartable


class TrainingStopped(Exception):
    """Every rank has stopped training after the same step, and the state is saved."""


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or its type if the message is empty."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def error_line(error: TrainError) -> str:
    """Return an error as a line of a rank's output; the supervisor makes an event `error` of it."""
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
    """Return the fields of an error line, with or without mpirun's label; None for other lines."""
    _, marker, text = line.partition(MARKER)
    if not marker:
        return None
    try:
        fields: dict[str, object] = json.loads(text)
        return fields if is_event("error", fields) else None
    except (ValueError, AttributeError, RecursionError):
        return None
