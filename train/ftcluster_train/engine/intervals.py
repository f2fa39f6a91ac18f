"""After which optimizer steps a training logs, evaluates and saves. Steps are counted from 1."""

import math
from dataclasses import dataclass

from ftcluster_common.recipe import Training


def whole_steps(value: float, last_step: int) -> int:
    """A number of steps; one below 1 is a share of all steps, rounded up, as in transformers.

    >>> whole_steps(50, 125), whole_steps(0.1, 125)
    (50, 13)
    """
    return math.ceil(last_step * value) if value < 1 else int(value)


def warmup_steps(training: Training, last_step: int) -> int:
    """The steps in which the learning rate rises."""
    if training.warmup_steps:
        return whole_steps(training.warmup_steps, last_step)
    return math.ceil(last_step * training.warmup_ratio)


@dataclass(frozen=True)
class Intervals:
    """The recipe's strategies over the steps of a training; the last step always counts."""

    training: Training
    steps_per_epoch: int
    last_step: int

    def epoch(self, step: int) -> float:
        """The epochs done after a step."""
        return round(step / self.steps_per_epoch, 4)

    def logs(self, step: int) -> bool:
        """Whether losses are logged after a step."""
        settings = self.training
        first = step == 1 and settings.logging_first_step
        due = self._is_due(step, settings.logging_strategy, settings.logging_steps)
        return due or first or step == self.last_step

    def evaluates(self, step: int) -> bool:
        """Whether an evaluation follows a step."""
        settings = self.training
        interval = settings.eval_steps or settings.logging_steps
        return self._is_due(step, settings.eval_strategy, interval)

    def saves(self, step: int) -> bool:
        """Whether a checkpoint follows a step; with the strategy "best" an evaluation decides."""
        return self._is_due(step, self.training.save_strategy, self.training.save_steps)

    def _is_due(self, step: int, strategy: str, interval: float) -> bool:
        if strategy in ("no", "best"):
            return False
        every = (
            self.steps_per_epoch if strategy == "epoch" else whole_steps(interval, self.last_step)
        )
        return step % every == 0 or step == self.last_step
