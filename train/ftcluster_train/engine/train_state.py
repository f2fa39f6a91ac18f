"""Where a training is."""

import math
from dataclasses import dataclass, field
from typing import Any

from ftcluster_common.recipe import Training
from ftcluster_train.errors import TrainError

PREFIX = "eval_"  # transformers' Trainer puts it before metrics; a recipe's metric may have it


@dataclass
class TrainState:
    """What a training knows besides its tensors; it is saved and restored whole.

    Attributes:
        step: optimizer steps done.
        samples: training samples done, of all ranks.
        seconds: of training, without evaluations and checkpoints.
        metrics: of the last evaluation.
        best_metric: name of the metric that the best evaluation is chosen by; "" until the first
            evaluation where the recipe names none.
        best_metrics: of the best evaluation; empty before there is one.
        best_step: after which it was made; None before there is one.
        settings: what the weights depend on besides the state, by name.
        layout: what the state's tensors are of, see `state_layout`.
    """

    step: int = 0
    samples: int = 0
    seconds: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    best_metric: str = ""
    best_metrics: dict[str, float] = field(default_factory=dict)
    best_step: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    layout: list[str] = field(default_factory=list)

    def update_best(self, training: Training) -> bool:
        """Whether `metrics` are better than all before; equal ones and NaN are not.

        Raises:
            TrainError: the recipe's metric is not among them.
        """
        values = {name.removeprefix(PREFIX): value for name, value in self.metrics.items()}
        metric = self.best_metric or (training.metric_for_best_model or "").removeprefix(PREFIX)
        if not metric:
            metric = "loss" if "loss" in values else next(iter(values), "loss")
        if metric not in values:
            raise TrainError(
                f"the best model is chosen by '{metric}', which the evaluation does not "
                f"measure; it measures {', '.join(values) or 'nothing'}",
                "name one of these: training.metric_for_best_model=NAME",
            )
        self.best_metric = metric
        greater = training.greater_is_better
        if greater is None:
            greater = not metric.endswith("loss")
        sign = 1 if greater else -1
        best = self.best_metrics.get(metric, -sign * math.inf)
        if not sign * values[metric] > sign * best:
            return False
        self.best_metrics, self.best_step = values, self.step
        return True
