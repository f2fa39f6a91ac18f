"""The progress of a run, and the steps after which the run logs, evaluates and saves.

Steps are counted from 1.
"""

import math
from dataclasses import dataclass, field
from typing import Any

from ftcluster_common.recipe import Training
from ftcluster_train.errors import TrainError

PREFIX = "eval_"  # transformers' prefix of metric names, which recipes may also use


def whole_steps(value: float, last_step: int) -> int:
    """Return a setting as a number of steps.

    As in transformers, a value below 1 is a fraction of `last_step`, the total number of steps.

    >>> whole_steps(50, 125), whole_steps(0.1, 125)
    (50, 13)
    """
    return math.ceil(last_step * value) if value < 1 else int(value)


def warmup_steps(training: Training, last_step: int) -> int:
    """Return the number of warm-up steps, in which the learning rate rises."""
    if training.warmup_steps:
        return whole_steps(training.warmup_steps, last_step)
    return math.ceil(last_step * training.warmup_ratio)


@dataclass(frozen=True)
class Intervals:
    """The steps after which a run logs, evaluates and saves, according to its recipe.

    The last step is always included.
    """

    training: Training
    steps_per_epoch: int
    last_step: int

    def epoch(self, step: int) -> float:
        """Return the number of epochs that are done after a step, as a fraction."""
        return round(step / self.steps_per_epoch, 4)

    def logs(self, step: int) -> bool:
        """Return True if the loss is logged after a step."""
        settings = self.training
        first = step == 1 and settings.logging_first_step
        due = self._is_due(step, settings.logging_strategy, settings.logging_steps)
        return due or first or step == self.last_step

    def evaluates(self, step: int) -> bool:
        """Return True if an evaluation follows a step."""
        settings = self.training
        interval = settings.eval_steps or settings.logging_steps
        return self._is_due(step, settings.eval_strategy, interval)

    def saves(self, step: int) -> bool:
        """Return True if a checkpoint follows a step; always False for the strategy "best"."""
        return self._is_due(step, self.training.save_strategy, self.training.save_steps)

    def _is_due(self, step: int, strategy: str, interval: float) -> bool:
        if strategy in ("no", "best"):
            return False
        steps = (
            self.steps_per_epoch if strategy == "epoch" else whole_steps(interval, self.last_step)
        )
        return step % steps == 0 or step == self.last_step


@dataclass
class TrainState:
    """The training state except for its tensors; it is saved together with the tensors.

    Attributes:
        step: number of completed optimizer steps.
        samples: number of training samples in these steps, over all ranks.
        seconds: training time in seconds, without evaluations and checkpoints.
        metrics: metrics of the last evaluation, by name.
        classes: class reports of the last evaluation, see `Scores`.
        best_metric: name of the metric that determines the best evaluation. It is "" before the
            first evaluation if the recipe names no metric.
        best_metrics: metrics of the best evaluation; empty before the first evaluation.
        best_classes: class reports of the best evaluation; empty before the first evaluation.
        best_step: step of the best evaluation; None before the first evaluation.
        not_better: number of evaluations since the last improvement that exceeded the threshold of
            early stopping.
        settings: settings by name. If settings have changed when the run resumes, a notice lists
            them.
        layout: names and shapes of the saved tensors, see `state_layout`.
    """

    step: int = 0
    samples: int = 0
    seconds: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    classes: dict[str, Any] = field(default_factory=dict)
    best_metric: str = ""
    best_metrics: dict[str, float] = field(default_factory=dict)
    best_classes: dict[str, Any] = field(default_factory=dict)
    best_step: int | None = None
    not_better: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    layout: list[str] = field(default_factory=list)

    def advance(self, step: int, samples: int, seconds: float) -> None:
        """Record that a step is done.

        Args:
            samples: number of samples in this step, over all ranks.
            seconds: total training time so far, in seconds.
        """
        self.step, self.seconds = step, seconds
        self.samples += samples

    def take_scores(self, metrics: dict[str, float], classes: dict[str, Any]) -> None:
        """Store the results of the latest evaluation."""
        self.metrics, self.classes = metrics, classes

    def update_best(self, training: Training) -> bool:
        """Compare the latest evaluation with the best evaluation; return True if it is better.

        Equal values and NaN are not better. This method also updates `not_better` like
        EarlyStoppingCallback in transformers 5.23: an improvement that does not exceed the
        threshold becomes the best evaluation, but does not reset `not_better`.

        Raises:
            TrainError: the recipe names a metric that the evaluation does not return.
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
        first, self.best_metric = not self.best_metric, metric
        greater = training.greater_is_better
        if greater is None:
            greater = "loss" not in metric.split("_")  # also matches loss_matched
        sign = 1 if greater else -1
        best = self.best_metrics.get(metric, -sign * math.inf)
        better = sign * values[metric] > sign * best
        enough = better and abs(values[metric] - best) > training.early_stopping_threshold
        self.not_better = 0 if first or enough else self.not_better + 1
        if better:
            self.best_metrics, self.best_step = values, self.step
            self.best_classes = self.classes
        return better

    def stops(self, training: Training) -> bool:
        """Return True if the latest evaluation must end the run early."""
        patience = training.early_stopping_patience
        return patience is not None and self.not_better >= patience

    def stopped_early(self, training: Training) -> str:
        """Return the reason why the run ended before its last step."""
        by = f" by more than {training.early_stopping_threshold:g}"
        return (
            f"stopped early at step {self.step}: {self.best_metric} was not better"
            f"{by if training.early_stopping_threshold else ''} in {self.not_better} evaluations; "
            f"the best value is {self.best_metrics.get(self.best_metric, math.nan):.6g}, at step "
            f"{self.best_step}"
        )
