"""Which evaluation of a training was the best one."""

from collections.abc import Mapping

from ftcluster_common.recipe import Training
from ftcluster_train.errors import TrainError

PREFIX = "eval_"  # transformers' Trainer puts it before the names; a recipe may or may not


class Best:
    """Keeps the best evaluation by one metric.

    Args:
        training: of the recipe.

    Attributes:
        metric: the name that it is told by, as the task has it; empty before the first evaluation
            where the recipe leaves it to the task.
        value: of the best evaluation; None before the first one.
        step: after which it was made; None before the first one.
    """

    def __init__(self, training: Training) -> None:
        self.metric = (training.metric_for_best_model or "").removeprefix(PREFIX)
        self.value: float | None = None
        self.step: int | None = None
        self._greater_is_better = training.greater_is_better

    def update(self, metrics: Mapping[str, float], step: int) -> bool:
        """Take an evaluation in; whether it is better than all before it.

        One that is equal is not, and neither is one whose metric is not a number.

        Args:
            metrics: the task's, by name.
            step: after which they were measured.

        Raises:
            TrainError: the recipe's metric is not among them; names those that are.
        """
        found = {name.removeprefix(PREFIX): value for name, value in metrics.items()}
        if not self.metric:
            self.metric = "loss" if "loss" in found else next(iter(found), "loss")
        if self.metric not in found:
            raise TrainError(
                f"the best model is told by '{self.metric}', which the evaluation has not; "
                f"it has {', '.join(found) or 'no metrics'}",
                "name one of these: training.metric_for_best_model=NAME",
            )
        value = found[self.metric]
        if not self._is_better(value):
            return False
        self.value, self.step = value, step
        return True

    def _is_better(self, value: float) -> bool:
        greater = self._greater_is_better
        if greater is None:
            greater = not self.metric.endswith("loss")
        best = self.value
        if best is None:
            best = float("-inf") if greater else float("inf")
        return value > best if greater else value < best
