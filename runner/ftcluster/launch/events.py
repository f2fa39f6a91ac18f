"""events.jsonl of a run, which the head writes: each line is checked before it is used."""

import json
from typing import Any

from ftcluster.errors import FtclusterError
from ftcluster.text.printable import printable

Number = int | float
# of each kind of event in events.jsonl, what this side reads
FIELDS: dict[str, dict[str, Any]] = {
    "phase": {"doing": str},
    "notice": {"message": str},
    "start": {
        "world_size": int,
        "threads_per_rank": int,
        "precision": str,
        "ipex": bool,
        "backend": str,
        "steps": int,
        "epochs": Number,
    },
    "step": {
        "step": int,
        "epoch": Number,
        "loss": Number,
        "samples_per_second": Number,
        "remaining_seconds": Number,
    },
    "evaluation": {"step": int, "epoch": Number, "metrics": dict},
    "checkpoint": {"step": int, "folder": str},
    "result": {
        "model": str,
        "metrics": dict,
        "samples_per_second": Number,
        "world_size": int,
        "train_seconds": Number,
    },
    "error": {"message": str},
    "output": {"stream": str, "text": str},
    "end": {"state": str, "seconds": Number},
}


def read_event_line(line: bytes) -> dict[str, Any]:
    """One line of a run's events.jsonl, which the head writes.

    What a user's script prints is handed on as it is; it is the user's own program.

    Raises:
        FtclusterError: it is not an event, or not one of its kind; shows it.
    """
    try:
        event = json.loads(line)
        wanted = FIELDS.get(event["event"], {})
        right = all(_is(event[name], kind) for name, kind in wanted.items())
        metrics = event.get("metrics", {}).values()
        right = right and all(_is(one, Number) for one in metrics)
        right = right and isinstance(event.get("rank"), int | None)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        right = False
    if not right:
        raise FtclusterError(f"the head says what is no event of a run: {line[:200]!a}")
    found: dict[str, Any] = event if event["event"] == "output" else printable(event)
    return found


def _is(value: Any, kind: Any) -> bool:
    # Python takes true for a whole number
    return isinstance(value, kind) and isinstance(value, bool) == (kind is bool)
