"""The data of a run for the page and its pictures."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ftcluster.progress.classes import reports_of
from ftcluster.progress.texts import Texts, written_texts
from ftcluster.report.analysis import (
    HostCost,
    NextHost,
    StepParts,
    host_costs,
    next_host,
    rank_hosts,
    step_parts,
)
from ftcluster.report.files import RunFiles
from ftcluster.report.history import History, history_of, totals
from ftcluster_common.protocol.class_report import ClassReport
from ftcluster_common.protocol.launch import TAGS_VARIABLE
from ftcluster_common.protocol.rank_times import Interval
from ftcluster_common.protocol.run_state import name_of_run

SECTIONS = ("options", "training")  # sections of a recipe
MOST_VARIED, MOST_LABEL = 2, 40  # maximum number of fields, and of characters, of a label


@dataclass(frozen=True)
class RunPage:
    """The data of a run for the page.

    Attributes:
        label: short name of the run on the page.
    """

    label: str
    files: RunFiles

    @cached_property
    def history(self) -> History:
        """The events of the run."""
        return history_of(self.files.events)

    @property
    def record(self) -> dict[str, Any]:
        """The record of the run."""
        return self.files.record

    @property
    def recipe(self) -> str:
        """The name of the recipe, or the kind of the run if the run has no recipe."""
        return str(self.record.get("recipe", {}).get("name") or self.record.get("kind", "script"))

    @property
    def tags(self) -> str:
        """The tags of the run, or ""."""
        return str(self.record.get("launch", {}).get("env", {}).get(TAGS_VARIABLE, ""))

    @cached_property
    def hosts(self) -> list[str]:
        """The host of each rank."""
        return rank_hosts(self.history.ranks, self.record)

    @cached_property
    def whole(self) -> Interval | None:
        """The sum of all training intervals that the ranks reported, or None."""
        return totals(self.history.intervals)

    @cached_property
    def parts(self) -> StepParts | None:
        """The parts of a mean step, or None if unknown."""
        return step_parts(self.whole, self.history.products) if self.whole else None

    @cached_property
    def costs(self) -> list[HostCost]:
        """The cost of each host, the slowest host first."""
        return host_costs(self.whole, self.hosts) if self.whole else []

    @cached_property
    def next(self) -> NextHost | None:
        """The predicted speed with one more host, or None if the current speed is unknown."""
        if not self.whole or not self.speed:
            return None
        return next_host(self.whole, self.speed, len(set(self.hosts)))

    @property
    def speed(self) -> float:
        """The training speed in samples per second."""
        history = self.history
        last = history.steps[-1]["samples_per_second"] if history.steps else 0.0
        return float(history.result.get("samples_per_second", last))

    @property
    def epoch_seconds(self) -> float:
        """The duration of an epoch in the training loop, in seconds; 0 if unknown."""
        samples = self.history.start.get("train_samples", 0)
        return float(samples / self.speed) if self.speed else 0.0

    @property
    def state(self) -> str:
        """The state of the run."""
        return str(self.history.end.get("state", "running"))

    @property
    def _measured(self) -> Mapping[str, Any]:
        """The event with the result, or else the last evaluation."""
        evaluations = self.history.evaluations
        return self.history.result or (evaluations[-1] if evaluations else {})

    @property
    def last_metrics(self) -> dict[str, float]:
        """The metrics of the result, or else of the last evaluation."""
        return dict(self._measured.get("metrics", {}))

    @property
    def main_metric(self) -> tuple[str, float] | None:
        """The name and value of the metric that selects the best model, or None."""
        metrics = {name.removeprefix("eval_"): value for name, value in self.last_metrics.items()}
        training = self.record.get("recipe", {}).get("training", {})
        name = str(training.get("metric_for_best_model") or "").removeprefix("eval_")
        name = name or ("loss" if "loss" in metrics else next(iter(metrics), ""))
        return (name, float(metrics[name])) if name in metrics else None

    @property
    def classes(self) -> dict[str, ClassReport]:
        """The class reports of the model, by data set."""
        return reports_of(self._measured)

    @property
    def texts(self) -> Texts:
        """The texts that the model generated, by data set."""
        return written_texts(self.history.result, self.history.evaluations)


def labels(files: Sequence[RunFiles]) -> list[str]:
    """Return short names of runs: the recipe fields that differ between the runs.

    If too many fields differ, return the runs' names with the ends of their ids instead. If these
    are not unique, return the ids.
    """
    fields = [fields_of(run.record.get("recipe", {})) for run in files]
    all_fields = dict.fromkeys(name for recipe in fields for name in recipe)
    varied = [n for n in all_fields if len({json.dumps(recipe.get(n)) for recipe in fields}) > 1]
    shown = [
        ", ".join(f"{name.removeprefix('training.')}={recipe.get(name)}" for name in varied)
        for recipe in fields
    ]
    short = all(len(text) <= MOST_LABEL for text in shown)
    if 1 <= len(varied) <= MOST_VARIED and short and len(set(shown)) == len(shown):
        return shown
    ids = [run.run for run in files]
    names = [f"{name_of_run(run)} {run.rpartition('-')[2]}" for run in ids]
    stamped = all(name_of_run(run) != run for run in ids)
    return names if stamped and len(set(names)) == len(names) else ids


def fields_of(recipe: Mapping[str, Any], section: str = "") -> dict[str, Any]:
    """Return a recipe's fields by the names that users write on the command line.

    >>> fields_of({"name": "mrpc", "options": {"max_length": 64}, "training": {"seed": 7}})
    {'max_length': 64, 'training.seed': 7}
    """
    fields: dict[str, Any] = {}
    for name, value in recipe.items():
        if name in SECTIONS:
            fields |= fields_of(value, "training." if name == "training" else "")
        elif section or name != "name":
            fields[f"{section}{name}"] = value
    return fields
