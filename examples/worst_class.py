"""Your own metric, for --metrics: the recall of the class that is recognised worst.

    ftcluster train classify --metrics worst_class.py --data reviews.csv \\
        training.load_best_model_at_end=true training.save_strategy=epoch \\
        training.metric_for_best_model=worst_recall
"""

from collections import Counter
from collections.abc import Sequence

METRICS = ("worst_recall",)  # the names that the function returns


def compute_metrics(predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Compare predicted with right classes, which are in the same order."""
    rows = Counter(references)
    right = Counter(a for a, b in zip(predictions, references, strict=True) if a == b)
    return {"worst_recall": min(right[name] / count for name, count in rows.items())}
