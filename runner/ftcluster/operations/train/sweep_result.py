"""The runs of a sweep as a table, and the best of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ftcluster.errors import UsageError
from ftcluster.progress.format import duration
from ftcluster.recipe.search import Settings
from ftcluster.text.plural import counted
from ftcluster.text.table import aligned
from ftcluster_common.recipe import Recipe

LESS_IS_BETTER = {"loss", "perplexity"}  # words of a metric's name; of all others more is better
PREFIX = "eval_"  # of a metric's name in transformers
WAITING, DIVERGED, NOT_STARTED = "waiting", "diverged", "not started"
REASON_LENGTH = 100  # in the table


@dataclass
class Row:
    """One run of a sweep.

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


def aim_of(recipe: Recipe, asked: str, fields: Sequence[str]) -> Aim:
    """What a sweep looks for: a metric that is asked for, or that of the recipe's best model.

    Where a field that is tried is a part of the loss itself, losses of runs say nothing of which
    one is better. Then it is the first other metric, unless one is asked for.

    Args:
        fields: that have several values.

    Raises:
        UsageError: the task has no such metric, or none that its runs are compared by.
    """
    training, known = recipe.training, recipe.spec.metric_names(recipe.options)
    own = (training.metric_for_best_model or "").removeprefix(PREFIX)
    asked = asked.removeprefix(PREFIX)
    if asked and asked not in known:
        raise UsageError(f"--metric {asked}: this task has {', '.join(known)}")
    comparable = recipe.spec.comparable_metrics(recipe.options, fields)
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


@dataclass(frozen=True)
class SweepResult:
    """A sweep, as far as it has come.

    Attributes:
        rows: a row a run, in the order of the command line.
        aim: what the best one has the best value of.
        at_once: how many run at the same time.
        fetched: the folder of this machine with the best model, or "".
        report: the page about the runs, or "".
        planned: whether it is not to begin.
    """

    rows: Sequence[Row]
    aim: Aim
    at_once: int = 1
    fetched: str = ""
    report: str = ""
    planned: bool = False

    @property
    def metric(self) -> str:
        """The name of what is compared; "" where nothing is measured."""
        return next((name for row in self.rows if (name := self.aim.of(row.metrics)[0])), "")

    @property
    def ranked(self) -> list[Row]:
        """Those with the metric, the best first; of equals the earlier one."""
        sign = -1 if self.aim.more_is_better(self.metric) else 1
        valued = [
            (value, row)
            for row in self.rows
            if row.state == "done" and (value := self.aim.of(row.metrics)[1]) is not None
        ]
        return [row for _, row in sorted(valued, key=lambda pair: sign * pair[0])]

    @property
    def best(self) -> Row | None:
        """The best one, if there is any."""
        return next(iter(self.ranked), None)

    @property
    def state(self) -> str:
        """`done` where each has ended, and one has the metric; else failed or running."""
        if self.planned or any(row.state in (WAITING, "running") for row in self.rows):
            return "planned" if self.planned else "running"
        lost = any(row.state == NOT_STARTED for row in self.rows)
        return "failed" if lost or not self.best else "done"

    def document(self) -> dict[str, Any]:
        """What `sweep --json` prints."""
        best = self.best
        return {
            "state": self.state,
            "metric": self.metric or None,
            "greater_is_better": self.aim.more_is_better(self.metric) if self.metric else None,
            "best": best.run if best else None,
            "best_settings": dict(best.settings) if best else None,
            "runs": [row.document() for row in self.rows],
            "fetched": self.fetched or None,
            "report": self.report or None,
        }

    def lines(self) -> list[str]:
        """The table, the best first, and what is to be done next."""
        ranked = self.ranked
        others = [row for row in self.rows if row not in ranked]
        names = list(dict.fromkeys(name for row in self.rows for name in row.settings))
        table = [(*names, self.metric or "metric", "time", "run")]
        table += [self._cells(row, names) for row in (*ranked, *others)]
        said = [*aligned(table), ""]
        counts = {row.state: 0 for row in self.rows}
        for row in self.rows:
            counts[row.state] += 1
        said.append(
            f"{counted(len(self.rows), 'run')}: "
            + ", ".join(f"{count} {state}" for state, count in counts.items())
        )
        if best := self.best:
            value = self.aim.of(best.metrics)[1]
            said.append(f"best {self.metric}, {value:.4g}: {best.label}")
            if not self.fetched:
                said.append(f"its model: ftcluster fetch {best.run}")
        if self.fetched:
            said.append(f"model: {self.fetched}")
        if self.report:
            said.append(f"report: {self.report}")
        return said

    def _cells(self, row: Row, names: Sequence[str]) -> tuple[str, ...]:
        value = self.aim.of(row.metrics)[1] if row.state == "done" else None
        shown = f"{value:.4g}" if value is not None else row.state
        why = f"{row.run}  {row.reason[:REASON_LENGTH]}".strip() if row.reason else row.run
        time = duration(row.seconds) if row.seconds else "-"
        return (*(row.settings.get(name, "-") for name in names), shown, time, why)
