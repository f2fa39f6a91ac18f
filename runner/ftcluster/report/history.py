"""Converts the events of a run to curves, time spans and seconds per rank. Pure functions only."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from itertools import pairwise
from typing import Any

from ftcluster_common.protocol.rank_times import Interval, RankTimes, interval_between

STARTING, LOADING, TRAINING = "starting", "loading", "training"
EVALUATING, SAVING, DOWN = "evaluating", "saving", "restarting"
SPANS = (STARTING, LOADING, TRAINING, EVALUATING, SAVING, DOWN)


@dataclass(frozen=True)
class TimeSpan:
    """A span of time in which a run did one activity of SPANS, in seconds since 1970."""

    doing: str
    began: float
    ended: float


@dataclass
class History:
    """The events of a run, sorted by subject.

    Attributes:
        began: time of the first event, in seconds since 1970.
        ended: time of the last event.
        start: last event `start`; likewise `data`, `result`, `products` and `end`.
        ranks: final placement of each rank.
        steps: events `step`; if a restart repeated a step, only the last event of the step.
            Likewise `evaluations`.
        intervals: intervals of all steps, including steps that a restart repeated.
        before: seconds of training in the runs that this run continues.
        timeline: spans of the last event `timeline`.
        restarts: events `restart`; likewise `checkpoints`, `notices`, `slow_hosts` and `errors`.
    """

    began: float = 0.0
    ended: float = 0.0
    start: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    products: Mapping[str, Any] = field(default_factory=dict)
    end: Mapping[str, Any] = field(default_factory=dict)
    ranks: Sequence[Mapping[str, Any]] = ()
    steps: list[Mapping[str, Any]] = field(default_factory=list)
    evaluations: list[Mapping[str, Any]] = field(default_factory=list)
    intervals: list[Interval] = field(default_factory=list)
    spans: list[TimeSpan] = field(default_factory=list)
    restarts: list[Mapping[str, Any]] = field(default_factory=list)
    checkpoints: list[Mapping[str, Any]] = field(default_factory=list)
    notices: list[Mapping[str, Any]] = field(default_factory=list)
    slow_hosts: list[Mapping[str, Any]] = field(default_factory=list)
    before: float = 0.0
    timeline: Sequence[tuple[str, str, float, float]] = ()
    errors: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """The seconds from the first event to the last; 0 if the clock was set back meanwhile."""
        return max(0.0, self.ended - self.began)

    @property
    def train_seconds(self) -> float:
        """The seconds that this run spent in training steps, without repeated steps."""
        last = self.steps[-1] if self.steps else {"train_seconds": self.before}
        return float(self.result.get("train_seconds", last["train_seconds"])) - self.before

    @property
    def goodput(self) -> float:
        """The fraction of the run's time spent in training steps, without repeated steps."""
        return self.train_seconds / self.seconds if self.seconds else 0.0

    @property
    def speeds(self) -> list[tuple[float, float]]:
        """Samples per second between two logged steps, each with the time of the later step."""
        zero = {"samples_per_second": 0.0, "train_seconds": 0.0}
        speeds = []
        for before, after in pairwise([zero, *self.steps]):
            old, new = (
                step["samples_per_second"] * step["train_seconds"] for step in (before, after)
            )
            seconds = after["train_seconds"] - before["train_seconds"]
            if seconds > 0:
                speeds.append((float(after["time"]), float(new - old) / seconds))
        return speeds


def history_of(events: Iterable[Mapping[str, Any]]) -> History:
    """Convert the events of a run, in their order; ignore unknown kinds of later versions."""
    history = History()
    doing, since = STARTING, 0.0
    before: Mapping[str, Any] | None = None  # the last interval since the ranks started

    def now(next_doing: str, at: float) -> None:
        nonlocal doing, since
        if at > since:
            history.spans.append(TimeSpan(doing, since, at))
        doing, since = next_doing, at

    for event in events:
        kind, at = event["event"], float(event["time"])
        if not history.began:
            history.began = since = at
        history.ended = at
        match kind:
            case "placement":
                history.ranks, before = event["ranks"], None
                now(LOADING, at)
            case "start":
                history.start = event
                now(TRAINING, at)
            case "step":
                _drop_repeated(history.steps, event["step"])
                history.steps.append(event)
                if event["step"] >= history.start.get("steps", 0):
                    now(SAVING, at)
            case "communication":
                if not history.intervals and history.steps:
                    history.before = history.steps[-1]["train_seconds"] - event["train_seconds"]
                history.intervals.append(interval_between(before, event))
                before = event
            case "timeline":
                history.timeline = event["spans"]
            case "evaluation":
                _drop_repeated(history.evaluations, event["step"])
                history.evaluations.append(event)
                _insert(history.spans, EVALUATING, since, at, event["seconds"])
            case "checkpoint":
                history.checkpoints.append(event)
                _insert(history.spans, SAVING, since, at, event["seconds"])
            case "restart":
                history.restarts.append(event)
                now(DOWN, at)
            case "notice":
                history.notices.append(event)
            case "slow_host":
                history.slow_hosts.append(event)
            case "error":
                history.errors.append(event)
            case "data" | "products" | "result" | "end":
                setattr(history, kind, event)
    now(doing, history.ended)
    # pictures draw later spans on top, so nested spans come after their parents
    history.spans.sort(key=lambda span: (span.began, -span.ended))
    return history


def _drop_repeated(events: list[Mapping[str, Any]], step: int) -> None:
    """Drop events of `step` and later steps, because the restarted run repeats these steps."""
    while events and events[-1]["step"] >= step:
        events.pop()


def _insert(spans: list[TimeSpan], doing: str, since: float, at: float, seconds: float) -> None:
    """Add a span that ends at `at`, inside the current activity, which began at `since`."""
    spans.append(TimeSpan(doing, max(since, at - seconds), at))


def totals(intervals: Sequence[Interval]) -> Interval | None:
    """Return the sum of the intervals, or None if there are none.

    Skip intervals whose number of ranks differs from the last interval.
    """
    if not intervals:
        return None
    last = intervals[-1]
    alike = [interval for interval in intervals if len(interval.ranks) == len(last.ranks)]
    ranks = tuple(
        RankTimes(*map(sum, zip(*map(astuple, of_rank), strict=True)))
        for of_rank in zip(*(interval.ranks for interval in alike), strict=True)
    )
    return Interval(
        last.step,
        sum(interval.steps for interval in alike),
        last.ended,
        sum(interval.seconds for interval in alike),
        ranks,
        sum(interval.tokens for interval in alike),
        sum(interval.sent_bytes for interval in alike),
    )
