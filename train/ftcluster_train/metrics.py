"""Accuracy and F1 from counts that ranks can add up."""

from collections.abc import Sequence


def count_predictions(predictions: Sequence[int], labels: Sequence[int]) -> list[float]:
    """[samples, right, true positives, false positives, false negatives] of class 1."""
    pairs = list(zip(predictions, labels, strict=True))
    return [
        float(len(pairs)),
        float(sum(p == y for p, y in pairs)),
        float(sum(p == 1 and y == 1 for p, y in pairs)),
        float(sum(p == 1 and y != 1 for p, y in pairs)),
        float(sum(p != 1 and y == 1 for p, y in pairs)),
    ]


def classification_metrics(counts: Sequence[float], classes: int) -> dict[str, float]:
    """Accuracy; for two classes also F1 of class 1, as GLUE defines both for MRPC.

    Args:
        counts: of all samples, as `count_predictions` gives them.
        classes: number of classes.
    """
    samples, right, true_positive, false_positive, false_negative = counts
    metrics = {"accuracy": right / samples}
    if classes == 2:
        denominator = 2 * true_positive + false_positive + false_negative
        metrics["f1"] = 2 * true_positive / denominator if denominator else 0.0
    return metrics
