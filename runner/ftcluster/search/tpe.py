"""Choose combinations with Optuna's TPE sampler, which uses the results of earlier combinations.

The study exists only in memory. It is deterministic, so an interrupted search resumes by repeating
the same requests and results.
"""

import importlib
import sys
from collections.abc import Sequence
from typing import Any

from ftcluster.errors import FtclusterError
from ftcluster.search.space import Axis, Settings, Values

PACKAGE = "optuna>=5,<6"  # as in pyproject.toml, the extra search


class Tpe:
    """A strategy that minimizes a value. The first ten combinations are random (Optuna's default).

    Args:
        axes: the fields with their values or ranges.
        seed: seed of the sampler.
        count: total number of combinations to choose.
        at_once: number of combinations to choose at a time, before their values are known.

    Raises:
        FtclusterError: optuna is not installed.
    """

    def __init__(self, axes: Sequence[Axis], seed: int, count: int, at_once: int = 1) -> None:
        try:
            optuna = importlib.import_module("optuna")
        except ImportError as error:
            raise FtclusterError(
                f"--tpe needs the package optuna: {error}",
                f"{sys.executable} -I -m pip install '{PACKAGE}'; or use --random N instead",
            ) from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=at_once > 1)
        self._study = optuna.create_study(sampler=sampler)
        self._failed = optuna.trial.TrialState.FAIL
        self._axes = axes
        self._distributions: dict[str, Any] = {}
        for axis in axes:
            if isinstance(axis, Values):
                kind = optuna.distributions.CategoricalDistribution(axis.values)
            elif axis.whole:
                ends = int(axis.low), int(axis.high)
                kind = optuna.distributions.IntDistribution(*ends, log=axis.log)
            else:
                kind = optuna.distributions.FloatDistribution(axis.low, axis.high, log=axis.log)
            self._distributions[axis.name] = kind
        self._remaining, self._at_once = count, at_once
        self._trials: list[Any] = []

    def ask(self) -> list[Settings]:
        """Return the next combinations. A combination may occur several times in a search."""
        while self._remaining and len(self._trials) < self._at_once:
            self._trials.append(self._study.ask(self._distributions))
            self._remaining -= 1
        return [self._settings(trial) for trial in self._trials]

    def _settings(self, trial: Any) -> Settings:
        values = ((axis, trial.params[axis.name]) for axis in self._axes)
        return {
            axis.name: value if isinstance(axis, Values) else axis.text(value)
            for axis, value in values
        }

    def tell(self, results: Sequence[float | None]) -> None:
        """Pass the values of the last combinations to Optuna; None for a missing value."""
        for trial, value in zip(self._trials, results, strict=True):
            if value is None:
                self._study.tell(trial, state=self._failed)
            else:
                self._study.tell(trial, value)
        self._trials = []
