"""Metrics of classification and regression, as in GLUE.

Tests compare them with scikit-learn and scipy.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ftcluster_common.protocol.class_report import ClassReport
from ftcluster_train.engine.metrics import pearson, spearman

HALF = 0.5
FEWEST = 10  # minimum number of rows that a class needs for a tuned threshold


def accuracy(predictions: Sequence[int], labels: Sequence[int]) -> float:
    """Return the fraction of correct predictions."""
    return sum(p == y for p, y in zip(predictions, labels, strict=True)) / len(labels)


def matthews(predictions: Sequence[int], labels: Sequence[int]) -> float:
    """Return Matthews' correlation coefficient for any number of classes; 0 if undefined.

    The coefficient is (c s - sum p_k t_k) / sqrt((s^2 - sum p_k^2) (s^2 - sum t_k^2)). Here c is
    the number of correct predictions, and s is the number of samples. Class k has p_k predictions
    and t_k labels. Source: Gorodkin 2004, "Comparing two K-category assignments by a K-category
    correlation coefficient".
    """
    predicted, true = Counter(predictions), Counter(labels)
    samples = len(labels)
    right = sum(p == y for p, y in zip(predictions, labels, strict=True))
    above = right * samples - sum(predicted[k] * true[k] for k in true)
    below = samples**2 - sum(n * n for n in predicted.values())
    below *= samples**2 - sum(n * n for n in true.values())
    return above / math.sqrt(below) if below else 0.0


METRICS: dict[str, Callable[[Sequence[float], Sequence[float]], float]] = {
    "accuracy": accuracy,  # type: ignore[dict-item] # class numbers are integers
    "matthews": matthews,  # type: ignore[dict-item]
    "pearson": pearson,
    "spearman": spearman,
}


def default_metrics(classes: int, several: bool = False) -> tuple[str, ...]:
    """Return the names of the default metrics.

    Args:
        classes: number of classes; 0 for a regression.
        several: True if a row may have several classes.
    """
    if several:
        return ("f1_micro", "f1_macro")
    if not classes:
        return ("pearson", "spearman")
    return ("accuracy", "f1" if classes == 2 else "f1_macro")


def measure(
    names: Sequence[str],
    predictions: Sequence[Any],
    labels: Sequence[Any],
    report: ClassReport | None = None,
) -> dict[str, float]:
    """Compute the named metrics over all samples.

    Args:
        names: names of the metrics.
        predictions: class numbers, collections of class numbers, or numbers of a regression.
        labels: true values, of the same type as the predictions.
        report: class report with the F1 scores; None for a regression.
    """
    scores = f1_scores(report) if report else {}
    return {
        name: scores[name] if name in scores else METRICS[name](predictions, labels)
        for name in names
    }


def f1_scores(report: ClassReport) -> dict[str, float]:
    """Return F1 scores, named as in scikit-learn; `f1` is the score of the positive class."""
    scores = {f"f1_{name}": f1 for name, (_, _, f1) in report.averages.items()}
    if report.positive:
        scores["f1"] = report.classes[1].f1
    if not report.several:  # with one class per row, f1_micro equals the accuracy
        scores["f1_micro"] = sum(of_class.right for of_class in report.classes) / report.rows
    return scores


def f1_of(right: int, wrong: int, missed: int) -> float:
    """Return the F1 of a class.

    Args:
        right: number of true positives.
        wrong: number of false positives.
        missed: number of false negatives.
    """
    return 2 * right / (2 * right + wrong + missed) if right else 0.0


def _matthews_of(right: int, wrong: int, missed: int, rest: int) -> float:
    below = (right + wrong) * (right + missed) * (rest + wrong) * (rest + missed)
    return (right * rest - wrong * missed) / math.sqrt(below) if below else 0.0


# functions that compute a metric from the numbers of true positives, false positives,
# false negatives and true negatives
OF_COUNTS: dict[str, Callable[[int, int, int, int], float]] = {
    "f1": lambda right, wrong, missed, _: f1_of(right, wrong, missed),
    "f1_macro": lambda right, wrong, missed, rest: (
        (f1_of(right, wrong, missed) + f1_of(rest, missed, wrong)) / 2
    ),
    "accuracy": lambda right, wrong, missed, rest: (right + rest) / (right + wrong + missed + rest),
    "matthews": _matthews_of,
}


def best_threshold(
    probabilities: Sequence[float], labels: Sequence[bool], metric: str = "f1"
) -> float:
    """Return the probability threshold with the highest value of a metric for a class.

    The threshold is the midpoint between two neighbouring probabilities. Among equally good
    thresholds, the one nearest to 0.5 is returned. For a class without rows, the threshold is 0.5.

    Args:
        probabilities: probability of the class, for each row.
        labels: True for each row that has the class.
        metric: a name in OF_COUNTS.

    >>> best_threshold([0.9, 0.4, 0.2], [True, True, False])
    0.30000000000000004
    """
    pairs = sorted(zip(probabilities, labels, strict=True), reverse=True)
    support, value_of = sum(labels), OF_COUNTS[metric]

    def value(right: int, count: int) -> float:
        """Return the metric if `count` rows are predicted positive, `right` of them correctly."""
        return value_of(right, count - right, support - right, len(pairs) - count - support + right)

    at_half = [label for probability, label in pairs if probability >= HALF]
    candidates, right = [(value(sum(at_half), len(at_half)), 0.0, HALF)], 0
    for count, (probability, label) in enumerate(pairs, start=1):
        right += label
        following = pairs[count][0] if count < len(pairs) else 0.0
        if following < probability:
            threshold = (probability + following) / 2
            candidates.append((value(right, count), -abs(threshold - HALF), threshold))
    return max(candidates)[2]
