"""What is due after which optimizer step: progress, evaluation, checkpoint.

Steps are counted from 1. A number of steps below 1 is that share of all steps, rounded up, as
transformers has it.
"""

import math

from ftcluster_common.recipe import Training


def steps_of(value: float, steps: int) -> int:
    """A number of steps, or a share below 1 of all `steps`, as whole steps.

    >>> steps_of(50, 125), steps_of(0.1, 125)
    (50, 13)
    """
    return math.ceil(steps * value) if value < 1 else int(value)


def warmup_steps(training: Training, steps: int) -> int:
    """The steps of `steps` in which the learning rate rises."""
    if training.warmup_steps:
        return steps_of(training.warmup_steps, steps)
    return math.ceil(steps * training.warmup_ratio)


class Cadence:
    """Which steps are followed by what.

    An epoch ends with each `steps_per_epoch` steps and with the last step of all.

    Args:
        training: of the recipe.
        steps: optimizer steps of the whole training.
        steps_per_epoch: of one pass over the training data.
    """

    def __init__(self, training: Training, steps: int, steps_per_epoch: int) -> None:
        self._training = training
        self._steps = steps
        self._steps_per_epoch = steps_per_epoch
        self._logging_steps = steps_of(training.logging_steps, steps)
        self._eval_steps = steps_of(training.eval_steps or training.logging_steps, steps)
        self._save_steps = steps_of(training.save_steps, steps)

    def logs(self, step: int) -> bool:
        """Whether progress is told after this step; after the last one always."""
        if step == self._steps or (step == 1 and self._training.logging_first_step):
            return True
        return self._falls_due(step, self._training.logging_strategy, self._logging_steps)

    def evaluates(self, step: int) -> bool:
        """Whether the validation set is evaluated; after the last step unless it never is."""
        strategy = self._training.eval_strategy
        last = step == self._steps and strategy != "no"
        return last or self._falls_due(step, strategy, self._eval_steps)

    def saves(self, step: int, improved: bool = False) -> bool:
        """Whether a checkpoint is saved.

        Args:
            step: the one that was done.
            improved: whether it was evaluated and is the best so far; what save_strategy best
                goes by.
        """
        strategy = self._training.save_strategy
        if strategy == "best":
            return improved
        last = step == self._steps and strategy != "no"
        return last or self._falls_due(step, strategy, self._save_steps)

    def _falls_due(self, step: int, strategy: str, every: int) -> bool:
        if strategy == "epoch":
            return step % self._steps_per_epoch == 0 or step == self._steps
        return strategy == "steps" and step % every == 0
