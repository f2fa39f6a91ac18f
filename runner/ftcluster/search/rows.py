"""The runs that a search compares: the settings of each, how it ended, and which is the best."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ftcluster.errors import UsageError
from ftcluster.search.space import Settings
from ftcluster_common.recipe import Recipe

LESS_IS_BETTER = {"loss", "perplexity"}  # words of a metric's name; of all others more is better
PREFIX = "eval_"  # of a metric's name in transformers
WAITING, DIVERGED, NOT_STARTED = "waiting", "diverged", "not started"


@dataclass
class SweepRun:
    """A run of a sweep: its settings, its state and its hosts.

    Attributes:
        settings: what it is tried with.
        name: what its id begins with.
        run: its id; "" before its launch.
        state: of RunState, or one of the three above.
        hosts: names of its hosts.
        reason: why it has no metrics; "" where it has them, or may still get them.
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
        """Its settings as on a command line."""
        return " ".join(f"{name}={value}" for name, value in self.settings.items())

    def document(self) -> dict[str, Any]:
        """It as JSON, which has no NaN."""
        finite = {n: value if math.isfinite(value) else None for n, value in self.metrics.items()}
        return {**vars(self), "settings": dict(self.settings), "metrics": finite}

    def end(self, end: Mapping[str, Any]) -> None:
        """Take what is known of its end: that of a record, see `end_of`."""
        self.state = str(end["state"])
        self.seconds = float(end.get("seconds") or 0.0)
        self.samples_per_second = end.get("samples_per_second")
        self.model, measured = str(end.get("model") or ""), dict(end.get("metrics") or {})
        self.metrics = {name: one for name, one in measured.items() if isinstance(one, int | float)}
        self.reason = ""
        if errors := end.get("errors"):
            self.reason = " ".join(str(errors[0]["message"]).split())
        elif self.state != "done":
            self.reason = self.state
        elif bad := [n for n, value in self.metrics.items() if not math.isfinite(value)]:
            self.state = DIVERGED
            self.reason = f"not finite: {', '.join(bad)}"


@dataclass(frozen=True)
class Aim:
    """What the best run has the best value of.

    Attributes:
        metric: its name; "": the first of `others` that is measured; without these the loss, or
            else the first metric that is measured.
        greater: whether more is better; None: by its name.
    """

    metric: str = ""
    greater: bool | None = None
    others: tuple[str, ...] = ()

    def of(self, metrics: Mapping[str, float]) -> tuple[str, float | None]:
        """The metric's name, and its value where it is measured."""
        plain = {name.removeprefix(PREFIX): value for name, value in metrics.items()}
        known = self.others or ("loss", *plain)
        name = self.metric or next((name for name in known if name in plain), "")
        return name, plain.get(name)

    def more_is_better(self, name: str) -> bool:
        """Whether a greater value of a metric is better."""
        by_name = not LESS_IS_BETTER & {*name.split("_")}
        return by_name if self.greater is None else self.greater


def aim_of(
    recipe: Recipe, asked: str, fields: Sequence[str], own_metrics: Sequence[str] = ()
) -> Aim:
    """What a sweep looks for: a metric that is asked for, or that of the recipe's best model.

    Where a field that is tried is a part of the loss itself, losses of runs say nothing of which
    one is better. Then it is the first other metric, unless one is asked for.

    Args:
        fields: that have several values.
        own_metrics: names of the user's own metrics.

    Raises:
        UsageError: the task has no such metric, or none that its runs are compared by.
    """
    training, known = recipe.training, (*recipe.spec.metric_names(recipe.options), *own_metrics)
    own = (training.metric_for_best_model or "").removeprefix(PREFIX)
    asked = asked.removeprefix(PREFIX)
    if asked and asked not in known:
        raise UsageError(f"--metric {asked}: this task has {', '.join(known)}")
    comparable = (*recipe.spec.comparable_metrics(recipe.options, fields), *own_metrics)
    if asked or (own or "loss") in comparable or comparable == known:
        metric = asked or own
        return Aim(metric, training.greater_is_better if metric == own else None)
    if not comparable:
        raise UsageError(
            f"{', '.join(known)} are computed with {' and '.join(fields)}, so runs with other "
            "values are not compared by them, and this task has no other metric",
            f"--metric {known[0]} compares them all the same",
        )
    return Aim(others=comparable)
