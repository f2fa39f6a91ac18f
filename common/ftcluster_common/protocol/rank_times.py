"""Where the ranks' time went, from two events `communication`. Standard library only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True)
class RankTimes:
    """Seconds of one rank, which add up to its training.

    Attributes:
        compute: forward and backward passes, optimizer, and communication that they hide.
        communication: blocked while data moved: what the rank that waited least was.
        input: making batches.
        waiting: blocked for slower ranks.
    """

    compute: float
    communication: float
    input: float
    waiting: float

    @property
    def work(self) -> float:
        """Seconds in which the others may have to wait for it."""
        return self.compute + self.input


@dataclass(frozen=True)
class Interval:
    """Steps between two reports of the ranks.

    Attributes:
        step: the last of them.
        steps: how many.
        ended: seconds since 1970.
        seconds: without evaluation and checkpoints.
        ranks: by number.
        tokens: those of all ranks, without padding.
        sent_bytes: by rank 0.
    """

    step: int
    steps: int
    ended: float
    seconds: float
    ranks: tuple[RankTimes, ...]
    tokens: int
    sent_bytes: float


def interval_between(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> Interval:
    """The steps between two events `communication`, whose numbers are since the ranks started.

    Args:
        before: None for the first one since then.
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
    """How much longer each rank works than the median rank: 1 is usual, 1.2 a fifth longer."""
    usual = median(rank.work for rank in ranks)
    return [rank.work / usual if usual else 1.0 for rank in ranks]
