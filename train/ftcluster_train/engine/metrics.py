"""Metrics that several tasks use, in plain Python; other metrics are in a task's folder.

Tests compare the correlations with scipy.
"""

import math
from collections.abc import Sequence

ALIKE = 1e-3  # predictions that differ by less count as equal; relative to the range of the labels
DEPTH = 10  # number of retrieved texts per query that retrieval metrics consider


def pearson(predictions: Sequence[float], labels: Sequence[float]) -> float:
    """Return Pearson's correlation coefficient; 0 if predictions or labels are constant."""
    mean_p, mean_y = math.fsum(predictions) / len(predictions), math.fsum(labels) / len(labels)
    pairs = [(p - mean_p, y - mean_y) for p, y in zip(predictions, labels, strict=True)]
    below = math.fsum(p * p for p, _ in pairs) * math.fsum(y * y for _, y in pairs)
    return math.fsum(p * y for p, y in pairs) / math.sqrt(below) if below else 0.0


def spearman(predictions: Sequence[float], labels: Sequence[float]) -> float:
    """Return Spearman's rank correlation, which is Pearson's correlation of the ranks."""
    return pearson(ranks(predictions), ranks(labels))


def constant_notice(predictions: Sequence[float], labels: Sequence[float]) -> str:
    """Return a notice if all predictions are nearly equal, otherwise "".

    >>> constant_notice([5.5, 5.5], [1.0, 9.0])
    'ALL 2 PREDICTIONS ARE ALIKE, from 5.5 to 5.5, but the labels range from 1 to 9'
    >>> constant_notice([1.5, 8.0], [1.0, 9.0])
    ''
    """
    low, high = min(predictions), max(predictions)
    least, most = min(labels), max(labels)
    if len(labels) < 2 or least == most or high - low > ALIKE * (most - least):
        return ""
    return (
        f"ALL {len(labels)} PREDICTIONS ARE ALIKE, from {low:.6g} to {high:.6g}, but the labels "
        f"range from {least:g} to {most:g}"
    )


def ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value, counted from 1; equal values share their mean rank.

    >>> ranks([10.0, 30.0, 10.0])
    [1.5, 3.0, 1.5]
    """
    positions: dict[float, list[int]] = {}
    for rank, value in enumerate(sorted(values), start=1):
        positions.setdefault(value, []).append(rank)
    mean = {value: sum(places) / len(places) for value, places in positions.items()}
    return [mean[value] for value in values]


def perplexity(loss: float) -> float:
    """Return exp(loss) for a mean loss per token in nats; the result is finite for any loss."""
    return math.exp(min(loss, 700.0))


def gain_at(rank: int) -> float:
    """Return the gain of a relevant text at a rank (from 1) in discounted cumulative gain."""
    return 1 / math.log2(rank + 1)
