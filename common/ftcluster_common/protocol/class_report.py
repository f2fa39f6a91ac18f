"""Quality of the predictions of each class, as in scikit-learn's classification_report.

Standard library only.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

MOST_CLASSES = 200  # maximum in an event, because readers read 64 kB at each end of a file
MOST_CONFUSED = 400  # enough for all cells of 20 classes


@dataclass(frozen=True)
class ClassScores:
    """The counts of one class.

    Attributes:
        support: number of rows that have the class.
        predicted: number of rows for which the class is predicted.
        right: number of rows that have the class and for which it is predicted.
        threshold: minimum probability of a prediction if rows may have several classes, or if it
            was tuned for two classes.
    """

    name: str
    support: int
    predicted: int
    right: int
    threshold: float | None = None

    @property
    def precision(self) -> float:
        """Correct predictions / predictions; 0 if there are no predictions."""
        return self.right / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """Correct predictions / rows of the class; 0 if there are no rows."""
        return self.right / self.support if self.support else 0.0

    @property
    def f1(self) -> float:
        """2 TP / (2 TP + FP + FN); 0 if the class is neither predicted nor true."""
        both = self.predicted + self.support
        return 2 * self.right / both if both else 0.0


@dataclass(frozen=True)
class ClassReport:
    """The scores of the classes in a data set.

    Attributes:
        classes: scores in the order of class numbers; if there are very many classes, only the
            classes with the lowest F1.
        confused: off-diagonal cells of the confusion matrix, largest first: true class, predicted
            class, number of rows. Empty if a row may have several classes.
        rows: number of rows in the data set.
        positive: class that the metric f1 refers to; "" if there are more than two classes.
        several: True if a row may have several classes or none, such as the entities of a text.
        left_out: number of omitted classes plus number of omitted cells.
        whole: `averages` over all classes if some classes are omitted; otherwise None.
        temperature: divisor of the logits that calibrates the probabilities; None if the
            probabilities are not calibrated.
    """

    classes: tuple[ClassScores, ...]
    confused: tuple[tuple[str, str, int], ...]
    rows: int
    positive: str = ""
    several: bool = False
    left_out: int = 0
    whole: Mapping[str, tuple[float, float, float]] | None = None
    temperature: float | None = None

    @property
    def thresholds(self) -> bool:
        """True if the prediction of a class depends on a threshold; False for entities."""
        return self.several and all(scores.threshold is not None for scores in self.classes)

    @property
    def never_predicted(self) -> list[str]:
        """The classes that have rows but no predictions."""
        return [scores.name for scores in self.classes if scores.support and not scores.predicted]

    @property
    def averages(self) -> dict[str, tuple[float, float, float]]:
        """Return precision, recall and F1 over the classes, by kind of average.

        If each row has one class, classes that are neither predicted nor true are ignored, as in
        scikit-learn.
        """
        if self.whole is not None:
            return dict(self.whole)
        counted = [c for c in self.classes if self.several or c.support or c.predicted]
        equal, sizes = [1] * len(counted), [scores.support for scores in counted]
        averages = {"macro": _mean(counted, equal), "weighted": _mean(counted, sizes)}
        if self.several:  # if each row has one class, all micro averages equal the accuracy
            return {"micro": _scores(_total(counted)), **averages}
        return averages

    @property
    def matrix(self) -> list[list[int]] | None:
        """Return the confusion matrix, one row per class; None if it is incomplete or undefined."""
        if self.several or self.left_out:
            return None
        cells = {(true, predicted): count for true, predicted, count in self.confused}
        cells |= {(scores.name, scores.name): scores.right for scores in self.classes}
        names = [scores.name for scores in self.classes]
        return [[cells.get((true, predicted), 0) for predicted in names] for true in names]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-ready data for an event."""
        kept = self.classes
        if not self.thresholds:  # an event with thresholds must have all classes
            worst = {
                scores.name for scores in sorted(kept, key=lambda scores: scores.f1)[:MOST_CLASSES]
            }
            kept = tuple(scores for scores in kept if scores.name in worst)
        omitted = len(self.classes) - len(kept) + max(0, len(self.confused) - MOST_CONFUSED)
        return {
            "classes": [list(astuple(scores)) for scores in kept],
            "confused": [list(pair) for pair in self.confused[:MOST_CONFUSED]],
            "rows": self.rows,
            "positive": self.positive,
            "several": self.several,
            "left_out": omitted,
            **({"averages": self.averages} if len(kept) < len(self.classes) else {}),
            **self._calibration,
        }

    def document(self) -> dict[str, Any]:
        """Return the report for `--json`."""
        return {
            "classes": [
                {
                    "class": scores.name,
                    "precision": scores.precision,
                    "recall": scores.recall,
                    "f1": scores.f1,
                    "support": scores.support,
                    "predicted": scores.predicted,
                    **({} if scores.threshold is None else {"threshold": scores.threshold}),
                }
                for scores in self.classes
            ],
            **{
                name: dict(zip(("precision", "recall", "f1"), values, strict=True))
                for name, values in self.averages.items()
            },
            "confusion_matrix": self.matrix,
            "never_predicted": self.never_predicted,
            "left_out": self.left_out,
            "f1_is_of": self.positive or None,
            **self._calibration,
        }

    @property
    def _calibration(self) -> dict[str, float]:
        return {} if self.temperature is None else {"temperature": self.temperature}


def read_report(data: Mapping[str, Any]) -> ClassReport:
    """Read a report from the JSON of an event.

    Raises:
        KeyError, TypeError, ValueError: the JSON is not a report.
    """
    classes = tuple(
        ClassScores(str(name), _count(n), _count(m), _count(k), None if at is None else float(at))
        for name, n, m, k, at in data["classes"]
    )
    confused = tuple((str(a), str(b), _count(n)) for a, b, n in data["confused"])
    several, positive = bool(data["several"]), str(data["positive"])
    left, averages = _count(data["left_out"]), data.get("averages")
    whole = {str(name): _three(values) for name, values in averages.items()} if averages else None
    divisor = None if data.get("temperature") is None else float(data["temperature"])
    if divisor is not None and not 0 < divisor < math.inf:
        raise ValueError(f"{divisor} is not a temperature")
    rows = _count(data["rows"])
    return ClassReport(classes, confused, rows, positive, several, left, whole, divisor)


def _three(values: Sequence[Any]) -> tuple[float, float, float]:
    one, other, third = (float(value) for value in values)
    if not all(0 <= value <= 1 for value in (one, other, third)):
        raise ValueError(f"{values} are not precision, recall and F1")
    return one, other, third


def report_of_classes(
    predictions: Sequence[int], labels: Sequence[int], names: Sequence[str],
    threshold: float | None = None, temperature: float | None = None,
) -> ClassReport:  # fmt: skip
    """Return the report of rows that have one class each.

    Args:
        names: class names by number.
        threshold: tuned threshold for the second of two classes; None if it was not tuned.
        temperature: see `ClassReport`.

    >>> report_of_classes([0, 0, 0], [0, 1, 0], ["no", "yes"]).never_predicted
    ['yes']
    """
    cells = Counter(zip(labels, predictions, strict=True))
    support, predicted = Counter(labels), Counter(predictions)
    classes = tuple(
        ClassScores(name, support[n], predicted[n], cells[n, n], threshold if n == 1 else None)
        for n, name in enumerate(names)
    )
    wrong = [(names[a], names[b], count) for (a, b), count in cells.most_common() if a != b]
    positive = names[1] if len(names) == 2 else ""
    return ClassReport(classes, tuple(wrong), len(labels), positive, temperature=temperature)


def report_of_sets(
    predictions: Sequence[Sequence[int]], labels: Sequence[Sequence[int]], names: Sequence[str],
    thresholds: Sequence[float],
) -> ClassReport:  # fmt: skip
    """Return the report of rows that have any number of classes each.

    Args:
        predictions: class numbers of each row.
        names: class names by number.
    """
    support = Counter(n for row in labels for n in row)
    predicted = Counter(n for row in predictions for n in row)
    both = zip(predictions, labels, strict=True)
    right = Counter(n for found, true in both for n in {*found} & {*true})
    classes = tuple(
        ClassScores(name, support[n], predicted[n], right[n], thresholds[n])
        for n, name in enumerate(names)
    )
    return ClassReport(classes, (), len(labels), several=True)


def _mean(classes: Sequence[ClassScores], weights: Sequence[int]) -> tuple[float, float, float]:
    whole = sum(weights) or 1
    scores = zip(*(_scores(of_class) for of_class in classes), strict=True)
    means = [sum(w * s for w, s in zip(weights, column, strict=True)) / whole for column in scores]
    precision, recall, f1 = means or (0.0, 0.0, 0.0)
    return precision, recall, f1


def _scores(one: ClassScores) -> tuple[float, float, float]:
    return one.precision, one.recall, one.f1


def _total(classes: Sequence[ClassScores]) -> ClassScores:
    counts = ((scores.support, scores.predicted, scores.right) for scores in classes)
    return ClassScores("", *map(sum, zip((0, 0, 0), *counts, strict=True)))


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r} is not a number of rows")
    return value
