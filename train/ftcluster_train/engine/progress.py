"""Writes a training's progress: events, and values for the trackers. Only rank 0 does."""

import errno
from typing import Any

from ftcluster_train.engine.trackers import Trackers
from ftcluster_train.io.events import EventWriter

TRACKED = ("loss", "grad_norm", "learning_rate", "epoch")  # of a step
SPARED = ("step", "communication", "notice")  # a full disk costs the line, not the training


class ProgressLog:
    """Every rank calls it alike; only rank 0 has somewhere to write."""

    def __init__(self, events: EventWriter | None = None, trackers: Trackers | None = None) -> None:
        self._events, self._trackers = events, trackers

    def write(self, event: str, **fields: Any) -> None:
        """Write an event, see `ftcluster_common.protocol.events` for their kinds and fields."""
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

    def notice(self, text: str) -> None:
        """Write what a user should know."""
        self.write("notice", message=text)
