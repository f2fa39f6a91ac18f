"""The times of each rank between two events `communication`. Standard library only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True)
class RankTimes:
    """The training time of one rank in seconds, split into four parts.

    Attributes:
        compute: time in forward and backward passes and the optimizer, with overlapped
            communication.
        communication: time for which data moved; equal to the shortest time for which any rank was
            blocked.
        input: time in which the rank made batches.
        waiting: time for which slower ranks blocked the rank.
    """

    compute: float
    communication: float
    input: float
    waiting: float

    @property
    def work(self) -> float:
        """The seconds in which the other ranks may have to wait for this rank."""
        return self.compute + self.input


@dataclass(frozen=True)
class Interval:
    """The steps between two reports of the ranks.

    Attributes:
        step: number of the last step.
        steps: number of steps.
        ended: end time, in seconds since 1970.
        seconds: duration without evaluation and checkpoints.
        ranks: times of each rank, by rank number.
        tokens: tokens of all ranks, without padding.
        sent_bytes: bytes sent by rank 0.
    """

    step: int
    steps: int
    ended: float
    seconds: float
    ranks: tuple[RankTimes, ...]
    tokens: int
    sent_bytes: float


def interval_between(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> Interval:
    """Return the interval between two events `communication`; the events contain totals.

    Args:
        before: previous event, or None if `after` is the first event since the start.
    """
    zero: dict[str, Any] = {
        **dict.fromkeys(after, 0.0),
        **dict.fromkeys(("waited_seconds", "input_seconds"), [0.0] * len(after["waited_seconds"])),
    }
    first = before or zero
    steps, seconds, moved, tokens, sent = (
        after[name] - first[name]
        for name in ("steps", "train_seconds", "transfer_seconds", "useful_tokens", "sent_bytes")
    )
    waited, reading = (
        [new - old for old, new in zip(first[name], after[name], strict=True)]
        for name in ("waited_seconds", "input_seconds")
    )
    ranks = tuple(
        RankTimes(max(0.0, seconds - a - b), min(moved, a), b, max(0.0, a - moved))
        for a, b in zip(waited, reading, strict=True)
    )
    return Interval(after["step"], steps, float(after["time"]), seconds, ranks, int(tokens), sent)


def straggler_scores(ranks: Sequence[RankTimes]) -> list[float]:
    """Return each rank's work time divided by the median work time: 1.2 is a fifth longer."""
    usual = median(rank.work for rank in ranks)
    return [rank.work / usual if usual else 1.0 for rank in ranks]
