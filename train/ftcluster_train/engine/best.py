"""The best evaluation of a training."""

import math
from collections.abc import Mapping

from ftcluster_common.recipe import Training
from ftcluster_train.errors import TrainError

PREFIX = "eval_"  # transformers' Trainer puts it before metrics; a recipe's metric may have it


class BestEvaluation:
    """Keeps the best evaluation by one metric.

    Attributes:
        metric: its name; "" until the first evaluation where the recipe names none.
        metrics: of the best evaluation; empty before there is one.
        step: after which it was made; None before there is one.
    """

    def __init__(self, training: Training) -> None:
        self.metric = (training.metric_for_best_model or "").removeprefix(PREFIX)
        self.metrics: dict[str, float] = {}
        self.step: int | None = None
        self._greater_is_better = training.greater_is_better

    def update(self, metrics: Mapping[str, float], step: int) -> bool:
        """Whether these metrics are better than all before; equal ones and NaN are not.

        Raises:
            TrainError: the recipe's metric is not among them.
        """
        values = {name.removeprefix(PREFIX): value for name, value in metrics.items()}
        if not self.metric:
            self.metric = "loss" if "loss" in values else next(iter(values), "loss")
        if self.metric not in values:
            raise TrainError(
                f"the best model is chosen by '{self.metric}', which the evaluation does not "
                f"measure; it measures {', '.join(values) or 'nothing'}",
                "name one of these: training.metric_for_best_model=NAME",
            )
        greater = self._greater_is_better
        if greater is None:
            greater = not self.metric.endswith("loss")
        sign = 1 if greater else -1
        best = self.metrics.get(self.metric, -sign * math.inf)
        if not sign * values[self.metric] > sign * best:
            return False
        self.metrics, self.step = values, step
        return True
