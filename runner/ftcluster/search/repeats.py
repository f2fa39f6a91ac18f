"""Compare settings by the mean and spread of runs that differ only in their seeds and folds."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ftcluster.search.rows import SweepRun
from ftcluster.search.space import Settings

FOLD = "fold"
# Fields that change a run by chance only. Runs that differ in no other field repeat each other.
SEEDS = frozenset({"seed", "data_seed", "training.seed", "training.data_seed", FOLD})
# Two-sided 95 % quantiles of Student's t distribution for 1, 2, ... degrees of freedom, from the
# NIST/SEMATECH e-Handbook of Statistical Methods, section 1.3.6.7.2.
T_QUANTILES = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


class Spread(NamedTuple):
    """The values of a metric in several runs.

    Attributes:
        mean: mean of the values.
        deviation: standard deviation of the values; None for a single run.
    """

    mean: float
    deviation: float | None


def deviation_of(values: Sequence[float]) -> float | None:
    """Return the standard deviation of a sample; None for a single value."""
    return statistics.stdev(values) if len(values) > 1 else None


def spreads(runs: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    """Return the mean and the standard deviation of each metric that all runs have.

    Args:
        runs: metrics of each run, by name. Metrics that are not finite are omitted.

    >>> spreads([{"f1": 0.5, "loss": 1.0}, {"f1": 0.75}])["f1"].mean
    0.625
    """
    found: dict[str, Spread] = {}
    for name in runs[0] if runs else ():
        values = [run[name] for run in runs if math.isfinite(run.get(name, math.nan))]
        if len(values) == len(runs):
            found[name] = Spread(statistics.fmean(values), deviation_of(values))
    return found


@dataclass(frozen=True)
class RepeatedSetting:
    """The runs of one setting, which differ only in their seeds and folds.

    Attributes:
        settings: the tried values, without seeds and folds.
        rows: the runs that have the metric, best first.
        values: value of the metric of each run.
    """

    settings: Settings
    rows: Sequence[SweepRun]
    values: Sequence[float]

    @property
    def label(self) -> str:
        """The settings, formatted as command-line arguments; "" if only seeds were varied."""
        return " ".join(f"{name}={value}" for name, value in self.settings.items())

    @property
    def mean(self) -> float:
        """The mean of the metric."""
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """The standard deviation of the metric over all runs; None for a single run."""
        return deviation_of(self.values)

    @property
    def metrics(self) -> dict[str, Spread]:
        """The mean and the standard deviation of each metric that all runs have."""
        return spreads([row.metrics for row in self.rows])

    def document(self) -> dict[str, Any]:
        """Return the setting for `--json`."""
        return {
            "settings": dict(self.settings),
            "runs": [row.run for row in self.rows],
            "mean": self.mean,
            "deviation": self.deviation,
            "metrics": {name: spread._asdict() for name, spread in self.metrics.items()},
        }


def repeated_settings(
    ranked: Sequence[tuple[float, SweepRun]], more_is_better: bool
) -> list[RepeatedSetting]:
    """Group runs that differ only in seeds and folds. Return the setting with the best mean first.

    Args:
        ranked: the metric of each run, and the run, best first.
    """
    groups: dict[str, list[tuple[float, SweepRun]]] = {}
    for value, row in ranked:
        groups.setdefault(repr(_without_seeds(row.settings)), []).append((value, row))
    settings = [
        RepeatedSetting(
            _without_seeds(group[0][1].settings),
            [row for _, row in group],
            [value for value, _ in group],
        )
        for group in groups.values()
    ]
    return sorted(settings, key=lambda setting: -setting.mean if more_is_better else setting.mean)


def _without_seeds(settings: Settings) -> Settings:
    return {name: value for name, value in settings.items() if name not in SEEDS}


def may_be_chance(first: RepeatedSetting, second: RepeatedSetting) -> bool | None:
    """Return True if the difference of two means may be chance, by Welch's t-test at 95 %.

    Welch, The generalization of "Student's" problem when several different population variances are
    involved, Biometrika 34 (1947). The degrees of freedom are rounded down.

    Returns:
        True or False; None if a setting has only one run, because its spread is then unknown.
    """
    counts = len(first.values), len(second.values)
    if first.deviation is None or second.deviation is None:
        return None
    errors = first.deviation**2 / counts[0], second.deviation**2 / counts[1]
    if not sum(errors):
        return first.mean == second.mean
    freedom = sum(errors) ** 2 / sum(
        error**2 / (count - 1) for error, count in zip(errors, counts, strict=True)
    )
    quantile = T_QUANTILES[min(max(int(freedom), 1), len(T_QUANTILES)) - 1]
    return abs(first.mean - second.mean) <= quantile * math.sqrt(sum(errors))
