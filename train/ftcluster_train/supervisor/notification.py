"""Deliver a notification about a run, from its head.

    python -m ftcluster_train.supervisor.notification RUN_DIR EVENT

The supervisor starts this program, so that a slow command or server cannot delay the run. stdin
contains a `Delivery` as JSON. The program records each result as an event of the run. It prints
nothing, because the address of a webhook may be a secret. Standard library only.
"""

import json
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftcluster_common.delivery import COMMAND, WEBHOOK, Delivery, deliver
from ftcluster_common.protocol.run_state import RunState
from ftcluster_train.io.events import EventWriter
from ftcluster_train.supervisor.heartbeats import STOPS


def document_of(
    event: str, run: RunState, head: str, metrics: Mapping[str, Any], **changes: Any
) -> dict[str, Any]:
    """Return a notification's JSON body: the fields of `ftcluster ps --json`, and a line of text.

    Args:
        event: done, failed, stopped or waiting.
        head: name of the run's head.
        metrics: final metrics of a training run.
        changes: fields that are newer than in `run`.
    """
    row = {**run.to_dict(), **changes}
    document = {"event": event, **row, "head": head, "metrics": dict(metrics)}
    text = "".join(letter if letter.isprintable() else " " for letter in text_of(document))
    return {**document, "text": text}


def text_of(document: Mapping[str, Any]) -> str:
    """Return a line about a run for people.

    >>> text_of({"run": "a-1", "event": "done", "seconds": 3725, "metrics": {"accuracy": 0.91234}})
    'a-1 is done after 1:02:05: accuracy 0.9123'
    >>> text_of({"run": "a-1", "event": "waiting", "seconds": 2, "doing": "waiting for node2"})
    'a-1 is waiting for node2'
    """
    if document["event"] == "waiting":
        return f"{document['run']} is {document['doing']}"
    minutes, seconds = divmod(round(document["seconds"]), 60)
    after = f"after {minutes // 60}:{minutes % 60:02}:{seconds:02}"
    metrics = document.get("metrics", {}).items()
    details = document.get("why") or ", ".join(f"{name} {value:.4g}" for name, value in metrics)
    return f"{document['run']} {_VERBS[document['event']]} {after}" + (
        f": {details}" if details else ""
    )


_VERBS = {"done": "is done", "failed": "failed", "stopped": "was stopped"}


def main() -> int:
    """Deliver the notification on stdin, and record the results. Returns the exit code."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)  # the supervisor has blocked them
    run_dir, event = Path(sys.argv[1]), sys.argv[2]
    delivery = Delivery(**json.load(sys.stdin))
    events = EventWriter(run_dir)
    for by, problem in deliver(delivery):
        if problem:
            events.write("notice", message=failure_notice(event, by, problem))
        else:
            events.write("notified", about=event, by=by)
    return 0


def failure_notice(event: str, by: str, problem: str) -> str:
    """Return the notice about a notification that failed."""
    option = {COMMAND: "--notify", WEBHOOK: "--webhook"}[by]
    return f"{option}: the notification that the run is {event} has failed: {problem}"


if __name__ == "__main__":
    sys.exit(main())
