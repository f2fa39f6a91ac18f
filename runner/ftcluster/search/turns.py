"""The search for the fastest settings of a training. No I/O: trials are given.

Each setting is tried alone, with the plan's default between the others, because hosts are faster at
one time than at another. The best one, all that helped together, and the default then take turns,
and a setting is taken only if it is faster by more than these repeated trials differ.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from ftcluster.errors import ClusterChanged, FtclusterError
from ftcluster.planning.tuned import written
from ftcluster.progress.format import duration
from ftcluster.text.plural import counted

Settings = Mapping[str, Any]  # fields of a recipe, see planning.tuned; none: the plan's default
DEFAULT: Settings = {}

FIRST, FINAL = 1, 0  # the round of each setting alone; that in which the best take turns
FINALISTS = 2
TURNS = 4  # of each in the last round
LEAST_TURNS = 3  # that decide, if the time is over
BETWEEN = 3  # candidates between two trials of the default
FIRST_STEPS = 9  # of the trial that shows how long a step takes; a third is the warm-up
TRIAL_SECONDS = 4.0  # of training in a trial of the first round


@dataclass(frozen=True)
class Measured:
    """The speed that a trial has measured.

    Attributes:
        step_seconds: time of a step after the warm-up.
        seconds: time of the whole trial.
    """

    samples_per_second: float
    step_seconds: float
    seconds: float


@dataclass(frozen=True)
class Trial:
    """A training of some steps.

    Attributes:
        round: FIRST or FINAL.
        samples_per_second: None where it failed.
        problem: why it failed.
    """

    settings: Settings
    round: int
    steps: int
    samples_per_second: float | None
    problem: str = ""


@dataclass(frozen=True)
class Verdict:
    """The winner of the last round, if there is one.

    Attributes:
        settings: the winner's; none: the plan's default.
        best: the fastest candidate's, also where it does not win.
        speed_up: its speed relative to the default; None where there is no last round.
        spread: the largest difference between trials of the best, or of the default, in a round, as
            a part of their mean.
    """

    settings: Settings = field(default_factory=dict)
    best: Settings = field(default_factory=dict)
    speed_up: float | None = None
    spread: float | None = None


def together(ranked: Sequence[Settings]) -> Settings:
    """The settings that helped, as one.

    Args:
        ranked: single settings, the best first.

    >>> together([{"a": 1}, {"b": 1}, {"a": 2}])
    {'a': 1, 'b': 1}
    """
    merged: dict[str, Any] = {}
    for settings in ranked:
        for name, value in settings.items():
            merged.setdefault(name, value)
    return merged


class Search:
    """Tries settings until the best are known or the time is over.

    Attributes:
        trials: those that have ended, also where the search was interrupted.
        left_out: candidates that there was no time for.

    Args:
        measure: trains so many steps with these settings; raises FtclusterError where it fails.
        left: seconds that are left.
        say: takes a line about what is tried.
    """

    def __init__(
        self,
        measure: Callable[[Settings, int], Measured],
        left: Callable[[], float],
        say: Callable[[str], None],
        seed: int = 0,
    ) -> None:
        self._measure, self._left, self._say = measure, left, say
        self._random = random.Random(seed)
        self.trials: list[Trial] = []
        self.left_out: list[Settings] = []
        self._overhead = self._step = 0.0  # seconds of a trial's start and end, and of a step

    def run(self, pool: Sequence[Settings]) -> None:
        """Try these candidates, and keep all trials.

        Raises:
            FtclusterError: the default failed twice.
        """
        first = self._measured(DEFAULT, FIRST_STEPS)
        self._step = first.step_seconds
        self._overhead = max(first.seconds - FIRST_STEPS * self._step, 0.0)
        self._say(
            f"the plan's default: {first.samples_per_second:.1f} samples/s; a trial takes "
            f"{duration(self._overhead)} besides its steps"
        )
        steps = max(FIRST_STEPS, math.ceil(1.5 * TRIAL_SECONDS / self._step))
        faster = self._round(pool, steps)
        all_of_them = together(faster)
        self._final([all_of_them, *(one for one in faster if one != all_of_them)], steps)

    def _cost(self, steps: int) -> float:
        return self._overhead + steps * self._step

    def _reserve(self, steps: int, finalists: int, turns: int = TURNS) -> float:
        """Return the seconds that the last round takes."""
        return turns * (finalists + 1) * self._cost(steps)

    def _round(self, pool: Sequence[Settings], steps: int) -> list[Settings]:
        """Try candidates in order; return those faster than the default, the fastest first."""
        order = list(pool)

        def has_time(trials: int) -> bool:
            last_round = self._reserve(steps, 1, LEAST_TURNS)
            return self._left() >= trials * self._cost(steps) + last_round

        while order and has_time(3):  # the default, a candidate, the default
            self._try(DEFAULT, FIRST, steps)
            for _ in range(min(BETWEEN, len(order))):
                if has_time(2):
                    self._try(order.pop(0), FIRST, steps)
        self.left_out = order
        if self.trials:
            self._try(DEFAULT, FIRST, steps)
        speeds = relative(self.trials)
        faster = [(speed, trial.settings) for trial, speed in speeds if speed > 1]
        return [settings for _, settings in sorted(faster, key=lambda pair: -pair[0])]

    def _final(self, ranked: Sequence[Settings], steps: int) -> None:
        finalists = [settings for settings in ranked if settings][:FINALISTS]
        if finalists and self._left() < self._reserve(steps, len(finalists)):
            finalists = finalists[:1]
        for _ in range(TURNS if finalists else 0):
            turn = [DEFAULT, *finalists]
            if self._left() < len(turn) * self._cost(steps):
                return
            self._random.shuffle(turn)
            for settings in turn:
                self._try(settings, FINAL, steps)

    def _measured(self, settings: Settings, steps: int) -> Measured:
        """A trial; one of the default is repeated once if it fails, as a port may be taken."""
        try:
            return self._measure(settings, steps)
        except ClusterChanged:  # no trial of these settings
            raise
        except FtclusterError as error:
            if error.state == "stopped" or settings:
                raise
            self._say(f"  failed, once more: {error.message.splitlines()[0]}")
            return self._measure(settings, steps)

    def _try(self, settings: Settings, number: int, steps: int) -> None:
        what = written(settings) or "the plan's default"
        where = "last round" if number == FINAL else "alone"
        self._say(f"{where}, {counted(steps, 'step')}: {what} ...")
        try:
            measured = self._measured(settings, steps)
        except ClusterChanged:  # no trial of these settings
            raise
        except FtclusterError as error:
            if error.state == "stopped" or not settings:
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


def relative(trials: Sequence[Trial]) -> list[tuple[Trial, float]]:
    """The candidates of a round, and their speed relative to the default just before and after."""
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
    """Return the largest difference of repeated trials, as a part of their mean.

    >>> spread([98.0, 102.0])
    0.04
    """
    return (max(speeds) - min(speeds)) / mean(speeds)


def decide(trials: Sequence[Trial]) -> Verdict:
    """The fastest settings of the last round, if they are faster by more than the spread."""
    speeds: dict[str, list[float]] = {}  # in the last round
    defaults: dict[int, list[float]] = {}  # by round
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
