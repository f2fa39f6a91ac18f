"""Search for the fastest settings of a training run. No I/O: the caller runs the trials.

The search has two rounds. The first round tries each setting alone, with trials of the plan's
default in between, because the speed of hosts varies over time. The last round repeats, in turns,
the default, the best setting, and the combination of all settings that helped. A setting wins only
if it is faster than the default by more than the spread of the repeated trials.
"""

import math
import random
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any, TypeVar

from ftcluster.errors import ClusterChanged, FtclusterError
from ftcluster.planning.tuned import written
from ftcluster.progress.format import duration
from ftcluster.text.plural import counted

Settings = Mapping[str, Any]  # fields of a recipe, see planning.tuned; empty for the plan's default
DEFAULT: Settings = {}

FIRST, FINAL = 1, 0  # rounds: each setting alone, then the best settings in turns
FINALISTS = 2  # number of settings in the last round, without the default
TURNS = 4  # number of trials of each setting in the last round
LEAST_TURNS = 3  # minimum number of trials for a decision if time runs out
BETWEEN = 3  # number of candidates between two trials of the default
FIRST_STEPS = 9  # steps of the trial that measures the time of a step; a third is the warm-up
TRIAL_SECONDS = 4.0  # seconds of measured training in a trial


@dataclass(frozen=True)
class TrialSpeed:
    """The measured speed of a trial.

    Attributes:
        samples_per_second: training samples per second after the warm-up.
        step_seconds: seconds per step after the warm-up.
        seconds: seconds of the whole trial.
    """

    samples_per_second: float
    step_seconds: float
    seconds: float


@dataclass(frozen=True)
class Trial:
    """A finished trial: a short training run with some settings.

    Attributes:
        settings: the settings that were tried.
        round: FIRST or FINAL.
        steps: number of training steps.
        samples_per_second: measured speed; None if the trial failed.
        problem: reason why the trial failed; "" if the trial succeeded.
    """

    settings: Settings
    round: int
    steps: int
    samples_per_second: float | None
    problem: str = ""


T = TypeVar("T")
Tries = Generator["Attempt", TrialSpeed | FtclusterError, T]  # yields attempts, receives results


@dataclass(frozen=True)
class Verdict:
    """The result of the last round.

    Attributes:
        settings: the winning settings; empty if the plan's default wins.
        best: settings of the fastest candidate, even if the candidate does not win.
        speed_up: speed of `best` relative to the default; None without a last round.
        spread: largest relative difference between repeated trials: the maximum for `best` in the
            last round and for the default in each round.
    """

    settings: Settings = field(default_factory=dict)
    best: Settings = field(default_factory=dict)
    speed_up: float | None = None
    spread: float | None = None


def together(ranked: Sequence[Settings]) -> Settings:
    """Merge settings. If several settings have the same field, the first value is used.

    Args:
        ranked: settings that are faster than the default, the fastest first.

    >>> together([{"a": 1}, {"b": 1}, {"a": 2}])
    {'a': 1, 'b': 1}
    """
    merged: dict[str, Any] = {}
    for settings in ranked:
        for name, value in settings.items():
            merged.setdefault(name, value)
    return merged


@dataclass(frozen=True)
class Attempt:
    """A request to measure a training run of `steps` steps with some settings."""

    settings: Settings
    steps: int


class Turns:
    """A strategy that finds the fastest settings in two rounds, or until time runs out.

    Attributes:
        trials: the finished trials, even if the search was interrupted.
        left_out: candidates that were not tried because time ran out.

    Args:
        pool: the candidates to try, in this order.
        left: function that returns the remaining time in seconds.
        say: function that is called with a line of text about the current trial.
        seed: seed for the order of the trials in the last round.
    """

    def __init__(
        self,
        pool: Sequence[Settings],
        left: Callable[[], float],
        say: Callable[[str], None],
        seed: int = 0,
    ) -> None:
        self._left, self._say = left, say
        self._random = random.Random(seed)
        self._attempts = self._run(pool)
        self._asked: list[Attempt] | None = None  # None before the first attempt
        self.trials: list[Trial] = []
        self.left_out: list[Settings] = []
        self._overhead = self._step = 0.0  # seconds per trial without its steps, and per step

    def ask(self) -> list[Attempt]:
        """Return a list with the next attempt; an empty list at the end of the search."""
        if self._asked is None:
            self._asked = [next(self._attempts)]
        return self._asked

    def tell(self, results: Sequence[TrialSpeed | FtclusterError]) -> None:
        """Process the speed of the last attempt, or its error.

        Raises:
            FtclusterError: a trial of the plan's default failed twice.
        """
        [result] = results
        try:
            self._asked = [self._attempts.send(result)]
        except StopIteration:
            self._asked = []

    def _run(self, pool: Sequence[Settings]) -> Tries[None]:
        """Run both rounds with these candidates, and record all trials."""
        first = yield from self._measured(DEFAULT, FIRST_STEPS)
        self._step = first.step_seconds
        self._overhead = max(first.seconds - FIRST_STEPS * self._step, 0.0)
        self._say(
            f"the plan's default settings: {first.samples_per_second:.1f} samples/s; each trial "
            f"takes {duration(self._overhead)} in addition to its steps"
        )
        steps = max(FIRST_STEPS, math.ceil(1.5 * TRIAL_SECONDS / self._step))
        faster = yield from self._round(pool, steps)
        all_of_them = together(faster)
        yield from self._final(
            [all_of_them, *(setting for setting in faster if setting != all_of_them)], steps
        )

    def _cost(self, steps: int) -> float:
        return self._overhead + steps * self._step

    def _reserve(self, steps: int, finalists: int, turns: int = TURNS) -> float:
        """Return the estimated time of the last round in seconds."""
        return turns * (finalists + 1) * self._cost(steps)

    def _round(self, pool: Sequence[Settings], steps: int) -> Tries[list[Settings]]:
        """Run the first round. Return the candidates that beat the default, the fastest first."""
        order = list(pool)

        def has_time(trials: int) -> bool:
            last_round = self._reserve(steps, 1, LEAST_TURNS)
            return self._left() >= trials * self._cost(steps) + last_round

        while order and has_time(3):  # the default, a candidate, the default
            yield from self._try(DEFAULT, FIRST, steps)
            for _ in range(min(BETWEEN, len(order))):
                if has_time(2):
                    yield from self._try(order.pop(0), FIRST, steps)
        self.left_out = order
        if self.trials:
            yield from self._try(DEFAULT, FIRST, steps)
        speeds = relative(self.trials)
        faster = [(speed, trial.settings) for trial, speed in speeds if speed > 1]
        return [settings for _, settings in sorted(faster, key=lambda pair: -pair[0])]

    def _final(self, ranked: Sequence[Settings], steps: int) -> Tries[None]:
        finalists = [settings for settings in ranked if settings][:FINALISTS]
        if finalists and self._left() < self._reserve(steps, len(finalists)):
            finalists = finalists[:1]
        for _ in range(TURNS if finalists else 0):
            turn = [DEFAULT, *finalists]
            if self._left() < len(turn) * self._cost(steps):
                return
            self._random.shuffle(turn)
            for settings in turn:
                yield from self._try(settings, FINAL, steps)

    def _measured(self, settings: Settings, steps: int) -> Tries[TrialSpeed]:
        """Yield an attempt with these settings, and return its speed.

        If the plan's default fails, try it once more, because its port may have been in use.

        Raises:
            FtclusterError: the trial failed.
        """
        result = yield Attempt(settings, steps)
        if isinstance(result, FtclusterError) and not settings:
            self._say(f"  failed, trying again: {result.message.splitlines()[0]}")
            result = yield Attempt(settings, steps)
        if isinstance(result, FtclusterError):
            raise result
        return result

    def _try(self, settings: Settings, number: int, steps: int) -> Tries[None]:
        what = written(settings) or "the plan's default"
        where = "last round" if number == FINAL else "first round"
        self._say(f"{where}, {counted(steps, 'step')}: {what} ...")
        try:
            measured = yield from self._measured(settings, steps)
        except FtclusterError as error:
            if not settings:
                raise
            self.trials.append(Trial(settings, number, steps, None, error.message))
            self._say(f"  failed: {error.message.splitlines()[0]}")
            return
        self._overhead = max(self._overhead, measured.seconds - steps * measured.step_seconds)
        self.trials.append(Trial(settings, number, steps, measured.samples_per_second))
        against = ""
        if settings:
            before = [
                trial for trial in self.trials if not trial.settings and trial.round == number
            ]
            if before and before[-1].samples_per_second:
                speed_up = measured.samples_per_second / before[-1].samples_per_second
                against = f", {speed_up:.2f} x the default"
        self._say(f"  {measured.samples_per_second:.1f} samples/s{against}")


def attempted(
    measure: Callable[[Settings, int], TrialSpeed], attempts: Sequence[Attempt]
) -> list[TrialSpeed | FtclusterError]:
    """Measure each attempt. Return the speed of each attempt, or its error if it failed.

    Raises:
        ClusterChanged: the cluster has changed, so an attempt was not started.
        FtclusterError: the user or somebody else has stopped an attempt.
    """
    results: list[TrialSpeed | FtclusterError] = []
    for attempt in attempts:
        try:
            results.append(measure(attempt.settings, attempt.steps))
        except ClusterChanged:
            raise
        except FtclusterError as error:
            if error.state == "stopped":
                raise
            results.append(error)
    return results


def relative(trials: Sequence[Trial]) -> list[tuple[Trial, float]]:
    """Return the candidates' trials of the first round, with their speeds relative to the default.

    A trial is compared with the trials of the default before and after it.
    """
    speeds = []
    for number, trial in enumerate(trials):
        if not trial.settings or not trial.samples_per_second:
            continue
        before = [speed for speed in map(_default_speed, trials[:number]) if speed][-1:]
        after = [speed for speed in map(_default_speed, trials[number:]) if speed][:1]
        if around := before + after:
            speeds.append((trial, trial.samples_per_second / mean(around)))
    return speeds


def _default_speed(trial: Trial) -> float | None:
    return None if trial.settings else trial.samples_per_second


def spread(speeds: Sequence[float]) -> float:
    """Return the difference between the highest and the lowest speed, relative to the mean speed.

    >>> spread([98.0, 102.0])
    0.04
    """
    return (max(speeds) - min(speeds)) / mean(speeds)


def decide(trials: Sequence[Trial]) -> Verdict:
    """Return the verdict on the last round.

    The fastest settings win if they are faster than the default by more than the spread.
    """
    speeds: dict[str, list[float]] = {}  # speeds in the last round
    defaults: dict[int, list[float]] = {}  # speeds of the default by round
    of: dict[str, Settings] = {}
    for trial in trials:
        if not trial.samples_per_second:
            continue
        if not trial.settings:
            defaults.setdefault(trial.round, []).append(trial.samples_per_second)
        elif trial.round == FINAL:
            name = written(trial.settings)
            of[name] = trial.settings
            speeds.setdefault(name, []).append(trial.samples_per_second)
    default = defaults.get(FINAL, [])
    repeated = {name: turns for name, turns in speeds.items() if len(turns) >= LEAST_TURNS}
    if len(default) < LEAST_TURNS or not repeated:
        return Verdict()
    best = max(repeated, key=lambda name: mean(repeated[name]))
    speed_up = mean(repeated[best]) / mean(default)
    differs = max(map(spread, [repeated[best], *defaults.values()]))
    wins = speed_up - 1 > differs
    return Verdict(of[best] if wins else DEFAULT, of[best], speed_up, differs)
