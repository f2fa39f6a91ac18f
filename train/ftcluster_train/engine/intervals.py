"""After which optimizer steps the loop logs, evaluates and saves. Steps are counted from 1."""

import math

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


def is_due(step: int, strategy: str, interval: float, steps_per_epoch: int, last_step: int) -> bool:
    """Whether an action with this strategy follows `step`; the last step always counts.

    Args:
        strategy: "steps", "epoch", or "no"; with "best" an evaluation decides and not the step.
        interval: number or share of steps, for the strategy "steps".
    """
    if strategy in ("no", "best"):
        return False
    every = steps_per_epoch if strategy == "epoch" else whole_steps(interval, last_step)
    return step % every == 0 or step == last_step
