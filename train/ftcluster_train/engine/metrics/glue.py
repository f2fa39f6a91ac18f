"""Metrics of GLUE in plain Python, tested against values of scikit-learn and scipy."""

import math
from collections import Counter
from collections.abc import Callable, Sequence


def accuracy(predictions: Sequence[int], labels: Sequence[int]) -> float:
    """The share of correct predictions."""
    return sum(p == y for p, y in zip(predictions, labels, strict=True)) / len(labels)


def f1(predictions: Sequence[int], labels: Sequence[int]) -> float:
    """2 TP / (2 TP + FP + FN) of class 1; 0 if that class is neither predicted nor true."""
    pairs = Counter((p == 1, y == 1) for p, y in zip(predictions, labels, strict=True))
    right, wrong = 2 * pairs[True, True], pairs[True, False] + pairs[False, True]
    return right / (right + wrong) if right + wrong else 0.0


def matthews(predictions: Sequence[int], labels: Sequence[int]) -> float:
    """Matthews' correlation coefficient for any number of classes; 0 if undefined.

    With c correct predictions of s samples, and p_k predictions and t_k labels of class k:
    (c s - sum p_k t_k) / sqrt((s^2 - sum p_k^2) (s^2 - sum t_k^2)). Source: Gorodkin 2004,
    "Comparing two K-category assignments by a K-category correlation coefficient".
    """
    predicted, true = Counter(predictions), Counter(labels)
    samples = len(labels)
    right = sum(p == y for p, y in zip(predictions, labels, strict=True))
    above = right * samples - sum(predicted[k] * true[k] for k in true)
    below = samples**2 - sum(n * n for n in predicted.values())
    below *= samples**2 - sum(n * n for n in true.values())
    return above / math.sqrt(below) if below else 0.0


def pearson(predictions: Sequence[float], labels: Sequence[float]) -> float:
    """Pearson's correlation coefficient; 0 if one side is constant."""
    mean_p, mean_y = math.fsum(predictions) / len(predictions), math.fsum(labels) / len(labels)
    pairs = [(p - mean_p, y - mean_y) for p, y in zip(predictions, labels, strict=True)]
    below = math.fsum(p * p for p, _ in pairs) * math.fsum(y * y for _, y in pairs)
    return math.fsum(p * y for p, y in pairs) / math.sqrt(below) if below else 0.0


def spearman(predictions: Sequence[float], labels: Sequence[float]) -> float:
    """Spearman's rank correlation: Pearson's of the ranks."""
    return pearson(ranks(predictions), ranks(labels))


def ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value from 1; equal values share their mean rank.

    >>> ranks([10.0, 30.0, 10.0])
    [1.5, 3.0, 1.5]
    """
    positions: dict[float, list[int]] = {}
    for rank, value in enumerate(sorted(values), start=1):
        positions.setdefault(value, []).append(rank)
    mean = {value: sum(found) / len(found) for value, found in positions.items()}
    return [mean[value] for value in values]


METRICS: dict[str, Callable[[Sequence[float], Sequence[float]], float]] = {
    "accuracy": accuracy,  # type: ignore[dict-item] # of classes, which are whole numbers
    "f1": f1,  # type: ignore[dict-item]
    "matthews": matthews,  # type: ignore[dict-item]
    "pearson": pearson,
    "spearman": spearman,
}


def default_metrics(classes: int | None) -> tuple[str, ...]:
    """The metrics of a recipe that names none.

    Args:
        classes: number of classes; None for a regression.
    """
    if classes is None:
        return ("pearson", "spearman")
    return ("accuracy", "f1") if classes == 2 else ("accuracy",)


def measure(
    names: Sequence[str], predictions: Sequence[float], labels: Sequence[float]
) -> dict[str, float]:
    """Each named metric over all samples."""
    return {name: METRICS[name](predictions, labels) for name in names}


def perplexity(loss: float) -> float:
    """exp of the mean loss per token, in nats; finite for any loss."""
    return math.exp(min(loss, 700.0))
