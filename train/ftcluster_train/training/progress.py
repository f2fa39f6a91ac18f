"""What rank 0 tells of a training: events for the control node, and the reports asked for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftcluster_train.io.events import EventWriter
from ftcluster_train.training.trackers import Reports


class Tell:
    """The ranks call it alike; where there is no writer, nothing is told.

    Args:
        events: of rank 0.
        reports: of rank 0.
    """

    def __init__(self, events: EventWriter | None = None, reports: Reports | None = None) -> None:
        self._events, self._reports = events, reports
        self._steps = self._steps_per_epoch = 1

    def notice(self, message: str) -> None:
        """Something that a user should know."""
        self._write("notice", message=message)

    def start(self, steps: int, steps_per_epoch: int, **facts: Any) -> None:
        """The loop begins."""
        self._steps, self._steps_per_epoch = steps, steps_per_epoch
        self._write("start", steps=steps, epochs=steps / steps_per_epoch, **facts)

    def step(
        self, step: int, loss: float, norm: float, rate: float, samples: int, seconds: float
    ) -> None:
        """A step is done; `samples` and `seconds` are of all steps."""
        found = {"loss": loss, "grad_norm": norm, "learning_rate": rate, "epoch": self._epoch(step)}
        self._write(
            "step",
            step=step,
            **found,
            samples_per_second=samples / seconds,
            remaining_seconds=seconds / step * (self._steps - step),
        )
        self._report(step, found)

    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """The model was evaluated."""
        self._write("evaluation", step=step, epoch=self._epoch(step), metrics=dict(metrics))
        found = {f"eval_{name}": value for name, value in metrics.items()}
        self._report(step, {**found, "epoch": self._epoch(step)})

    def parameters(self, step: int, digest: str) -> None:
        """All ranks have the same parameters."""
        self._write("parameters", step=step, equal=True, sha256=digest)

    def checkpoint(self, step: int, folder: Path) -> None:
        """A checkpoint can be seen."""
        self._write("checkpoint", step=step, folder=str(folder))

    def _epoch(self, step: int) -> float:
        return round(step / self._steps_per_epoch, 4)

    def _write(self, event: str, **fields: Any) -> None:
        if self._events:
            self._events.write(event, **fields)

    def _report(self, step: int, values: Mapping[str, float]) -> None:
        if self._reports:
            self._reports.log(step, values)
