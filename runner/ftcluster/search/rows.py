"""The runs that a search compares: their settings, their outcomes, and the best run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ftcluster.errors import UsageError
from ftcluster.search.space import Settings
from ftcluster_common.recipe import Recipe

LESS_IS_BETTER = {"loss", "perplexity", "ece"}  # words in a metric's name
PREFIX = "eval_"  # prefix of metric names in transformers
OF_TESTS = "test_"  # prefix of test-set metrics, which must not influence the choice of a run
WAITING, DIVERGED, NOT_STARTED = "waiting", "diverged", "not started"


@dataclass
class SweepRun:
    """A run of a sweep: its settings, its state and its hosts.

    Attributes:
        settings: the settings that the run tries.
        name: the beginning of the run's id.
        run: the run's id; "" before the launch.
        state: a state of RunState, or WAITING, DIVERGED or NOT_STARTED.
        hosts: names of the run's hosts.
        reason: the reason why the run has no metrics; "" if it has metrics or may still get them.
    """

    settings: Settings
    name: str = ""
    run: str = ""
    state: str = WAITING
    hosts: tuple[str, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    samples_per_second: float | None = None
    model: str = ""
    reason: str = ""

    @property
    def label(self) -> str:
        """The run's settings, formatted as command-line arguments."""
        return " ".join(f"{name}={value}" for name, value in self.settings.items())

    def document(self) -> dict[str, Any]:
        """Return the row for `--json`, without NaN values."""
        finite = {n: value if math.isfinite(value) else None for n, value in self.metrics.items()}
        return {**vars(self), "settings": dict(self.settings), "metrics": finite}

    def end(self, end: Mapping[str, Any]) -> None:
        """Update the row with the result of the run.

        Args:
            end: the field `end` of the run's record, see `end_of`.
        """
        self.state = str(end["state"])
        self.seconds = float(end.get("seconds") or 0.0)
        self.samples_per_second = end.get("samples_per_second")
        self.model, measured = str(end.get("model") or ""), dict(end.get("metrics") or {})
        self.metrics = {
            name: value for name, value in measured.items() if isinstance(value, int | float)
        }
        self.reason = ""
        if errors := end.get("errors"):
            self.reason = " ".join(str(errors[0]["message"]).split())
        elif self.state != "done":
            self.reason = self.state
        elif bad := [n for n, value in self.metrics.items() if not math.isfinite(value)]:
            self.state = DIVERGED
            self.reason = f"metrics are not finite: {', '.join(bad)}"


@dataclass(frozen=True)
class Aim:
    """The metric by which runs are compared, and its direction.

    Attributes:
        metric: name of the metric. If "", the first measured metric of `others` is used; without
            `others`, the loss, or the first measured metric if the loss is not measured. Metrics of
            test sets are not used.
        greater: True if greater values are better; None to decide by the metric's name.
        others: names of metrics to use if `metric` is "".
    """

    metric: str = ""
    greater: bool | None = None
    others: tuple[str, ...] = ()

    def of(self, metrics: Mapping[str, float]) -> tuple[str, float | None]:
        """Return the name and the value of the metric; the value is None if it is not measured."""
        plain = {name.removeprefix(PREFIX): value for name, value in metrics.items()}
        measured = (name for name in plain if not name.startswith(OF_TESTS))
        names = self.others or ("loss", *measured)
        name = self.metric or next((name for name in names if name in plain), "")
        return name, plain.get(name)

    def more_is_better(self, name: str) -> bool:
        """Return True if greater values of a metric are better."""
        by_name = not LESS_IS_BETTER & {*name.split("_")}
        return by_name if self.greater is None else self.greater


def aim_of(
    recipe: Recipe, asked: str, fields: Sequence[str], own_metrics: Sequence[str] = ()
) -> Aim:
    """Return the aim of a sweep.

    The default metric is the one that selects the best checkpoint of the recipe. If the sweep
    varies a field that is part of the loss function, the losses of its runs are not comparable. The
    default is then the first metric other than the loss.

    Args:
        asked: name of the requested metric; "" for the default.
        fields: names of the fields with several values.
        own_metrics: names of the user's own metrics.

    Raises:
        UsageError: the task does not have the requested metric, or has no comparable metric.
    """
    training, names = recipe.training, (*recipe.spec.metric_names(recipe.options), *own_metrics)
    of_recipe = (training.metric_for_best_model or "").removeprefix(PREFIX)
    asked = asked.removeprefix(PREFIX)
    if asked and asked not in names:
        raise UsageError(f"--metric {asked}: the metrics of this task are {', '.join(names)}")
    comparable = (*recipe.spec.comparable_metrics(recipe.options, fields), *own_metrics)
    if asked or (of_recipe or "loss") in comparable or comparable == names:
        metric = asked or of_recipe
        return Aim(metric, training.greater_is_better if metric == of_recipe else None)
    if not comparable:
        verb = "depends" if len(names) == 1 else "depend"
        raise UsageError(
            f"{', '.join(names)} {verb} on {' and '.join(fields)}, so runs with different values "
            "are not comparable, and this task has no other metric",
            f"to compare the runs anyway: --metric {names[0]}",
        )
    return Aim(others=comparable)
