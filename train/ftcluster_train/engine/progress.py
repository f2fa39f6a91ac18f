"""The log of a run: events, and values for the trackers. Only rank 0 writes it."""

import errno
from typing import Any

from ftcluster_train.engine.trackers import Trackers
from ftcluster_train.io.events import EventWriter

TRACKED = ("loss", "grad_norm", "learning_rate", "epoch")  # fields of `step` for trackers
SPARED = (
    "step",
    "communication",
    "timeline",
    "notice",
)  # events that are dropped if the disk is full


class ProgressLog:
    """A log that every rank may call in the same way; only rank 0 writes."""

    def __init__(self, events: EventWriter | None = None, trackers: Trackers | None = None) -> None:
        self._events, self._trackers = events, trackers

    def write(self, event: str, **fields: Any) -> None:
        """Write an event.

        `ftcluster_common.protocol.events` defines the kinds of events and their fields.
        """
        if self._events:
            try:
                self._events.write(event, **fields)
            except OSError as error:
                if error.errno != errno.ENOSPC or event not in SPARED:
                    raise
        if self._trackers and event == "step":
            self._trackers.log(fields["step"], {name: fields[name] for name in TRACKED})
        if self._trackers and event == "evaluation":
            metrics = {f"eval_{name}": value for name, value in fields["metrics"].items()}
            self._trackers.log(fields["step"], {**metrics, "epoch": fields["epoch"]})

    def notice(self, text: str, **fields: Any) -> None:
        """Write a notice for the user.

        Args:
            fields: optional fields of the event, see `ftcluster_common.protocol.events`.
        """
        self.write("notice", message=text, **fields)
