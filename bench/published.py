"""Predicted times of trainings whose times others have published, from this machine's samples/s.

The prediction is the speed of Trainer with its default settings per core, times the cores and hosts
of the publication, without any loss between cores or hosts. Its distance from the published time is
the error of the method. The errors in a precision are the range of ftcluster's own predictions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ICE_LAKE, SAPPHIRE_RAPIDS = (
    "[2021](https://huggingface.co/blog/accelerating-pytorch)",
    "[2022](https://huggingface.co/blog/intel-sapphire-rapids)",
)
# numbers of training samples; for SQuAD, parts with 384 tokens
MRPC, QQP, SQUAD = 3668, 363_846, 88_524


@dataclass(frozen=True)
class Published:
    """A published training.

    Attributes:
        case: case of `bench.engine`.
        samples: samples of all epochs.
        cores: cores of a host.
        minutes: published minutes; None if not published.
        ours: True if the case's mean length is also the mean length of these samples. Trainer pads
            all samples to the maximum, so its time does not depend on their mean length.
    """

    work: str
    case: str
    precision: str
    samples: int
    hosts: int
    cores: int
    minutes: float | None
    source: str = ""
    ours: bool = True


TRAININGS = (
    Published("BERT-base, MRPC, 3 epochs", "mrpc-bert", "fp32", 3 * MRPC, 1, 32, 7 + 46 / 60,
              ICE_LAKE),
    Published("DistilBERT, MRPC, 3 epochs", "mrpc", "fp32", 3 * MRPC, 2, 32, 4 + 39 / 60, ICE_LAKE),
    Published("DistilBERT, MRPC, 3 epochs", "mrpc", "fp32", 3 * MRPC, 4, 32, 2 + 36 / 60, ICE_LAKE),
    Published("BERT-base, QQP, 3 epochs", "mrpc-bert", "fp32", 3 * QQP, 1, 32, 11 * 60 + 22,
              ICE_LAKE, ours=False),
    Published("DistilBERT, SQuAD, 1 epoch", "squad", "fp32", SQUAD, 1, 32, 210, SAPPHIRE_RAPIDS),
    Published("DistilBERT, SQuAD, 1 epoch", "squad", "bf16", SQUAD, 1, 32, 26, SAPPHIRE_RAPIDS),
    Published("DistilBERT, SQuAD, 1 epoch", "squad", "bf16", SQUAD, 4, 32, 7.5, SAPPHIRE_RAPIDS),
    Published("BERT-base, MRPC, 3 epochs", "mrpc-bert", "fp32", 3 * MRPC, 4, 32, None),
    Published("BERT-base, MRPC, 3 epochs", "mrpc-bert", "bf16", 3 * MRPC, 4, 32, None),
    Published("BERT-large, SQuAD, 2 epochs", "squad-bert-large", "fp32", 2 * SQUAD, 4, 32, None),
    Published("BERT-large, SQuAD, 2 epochs", "squad-bert-large", "bf16", 2 * SQUAD, 4, 32, None),
)  # fmt: skip
CPUS = {"fp32": "Ice Lake", "bf16": "Sapphire Rapids"}


def minutes(training: Published, samples_per_second: float, cores: int) -> float:
    """Return the predicted minutes.

    Args:
        samples_per_second: rate on so many cores.
    """
    speed = samples_per_second / cores * training.cores * training.hosts
    return training.samples / speed / 60


def errors(results: Mapping[tuple[str, str], Any], cores: int, precision: str) -> list[float]:
    """Return predicted over published minutes of Trainer, for all times in a precision."""
    return [
        minutes(one, found["stock"]["samples_per_second"], cores) / one.minutes
        for one in TRAININGS
        if one.minutes and one.precision == precision
        if (found := results.get((one.case, one.precision)))
    ]


def table(results: Mapping[tuple[str, str], Any], cores: int) -> str:
    """Return all trainings that were measured here, as a Markdown table.

    Args:
        results: results of `bench.engine`, by case and precision.
        cores: number of cores of the measurement.
    """
    off = {precision: errors(results, cores, precision) for precision in CPUS}
    lines = [
        "| training | hosts of 32 cores | published | Trainer, predicted | error "
        "| ftcluster, predicted |",
        "|---|---|---|---|---|---|",
    ]
    for one in TRAININGS:
        found = results.get((one.case, one.precision))
        if not found:
            continue
        theirs = minutes(one, found["stock"]["samples_per_second"], cores)
        ours = minutes(one, found["ours"]["samples_per_second"], cores)
        cells = (
            one.work,
            f"{one.hosts} {CPUS[one.precision]}, {one.precision}",
            f"{_text(one.minutes)}, {one.source}" if one.minutes else "",
            _text(theirs),
            f"{theirs / one.minutes - 1:+.0%}" if one.minutes else "",
            _range(ours, off[one.precision]) if one.ours else "",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _range(value: float, off: Sequence[float]) -> str:
    """Format a prediction, with its values for the largest and smallest error."""
    least, most = value / max(1.0, *off), value / min(1.0, *off)
    return f"**{_text(value)}** ({_text(least)} to {_text(most)})"


def _text(value: float) -> str:
    return f"{value:.1f} min" if value < 100 else f"{value / 60:.1f} h"
