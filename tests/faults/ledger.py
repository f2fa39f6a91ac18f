"""The samples that count: samples of the last attempt at each step (`io/sample_log.py`)."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

Order = Mapping[int, Counter[int]]  # for each step, how often it has used each sample


@dataclass(frozen=True)
class Taken:
    """The samples of a rank in a step.

    Attributes:
        attempt: number of the run in a chain of resumed runs, and of its restart.
    """

    attempt: tuple[int, int]
    step: int
    samples: tuple[int, ...]


def read_log(text: str, run: int = 0) -> list[Taken]:
    """Read the complete lines of a rank's sample log; `run` is its number in the chain."""
    lines = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    return [Taken((run, line["restart"]), line["step"], tuple(line["samples"])) for line in lines]


def counted(taken: Iterable[Taken]) -> Order:
    """Return the samples that count, by step."""
    last: dict[int, tuple[int, int]] = {}
    order: dict[int, Counter[int]] = {}
    for one in sorted(taken, key=lambda one: one.attempt):
        if last.get(one.step) != one.attempt:
            last[one.step], order[one.step] = one.attempt, Counter()
        order[one.step].update(one.samples)
    return order


def compare(found: Order, undisturbed: Order, steps: int) -> tuple[int, int]:
    """Return how many samples of steps 1 to `steps` were lost, and how many were repeated."""
    lost = extra = 0
    for step in range(1, steps + 1):
        have, want = found.get(step, Counter()), undisturbed[step]
        lost += (want - have).total()
        extra += (have - want).total()
    return lost, extra


def by_pass(order: Order, steps: int) -> Order:
    """Return the samples of each epoch, from 1; an epoch has `steps` steps."""
    passes: dict[int, Counter[int]] = {}
    for step, samples in order.items():
        passes.setdefault((step - 1) // steps + 1, Counter()).update(samples)
    return passes


def logs_below(folder: Path) -> list[str]:
    """Return the texts of all ranks' logs in a run's folder on one host."""
    return [path.read_text() for path in sorted(folder.glob("samples/rank-*.jsonl"))]
