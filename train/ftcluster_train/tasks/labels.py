"""Labels of classification data: read from rows, and checked as a whole."""

import math
from collections.abc import Collection, Mapping
from typing import Any

from ftcluster_train.errors import TrainError


def read_class(label: Any, where: str) -> int:
    """The class number that a row gives.

    Raises:
        TrainError: it is none; negative ones stand for "not labelled" in many test sets.
    """
    if isinstance(label, bool) or not isinstance(label, int):
        raise TrainError(
            f"{where} has the label {label!r}, not a class number (0, 1, ...)",
            "numbers as labels are for regression: true",
        )
    if label < 0:
        raise TrainError(f"{where} has the label {label}, so it is not labelled")
    return label


def read_number(label: Any, where: str) -> float:
    """The number that a row of a regression gives.

    Raises:
        TrainError: it is none.
    """
    number = isinstance(label, int | float) and not isinstance(label, bool)
    if not number or not math.isfinite(label):
        raise TrainError(f"{where} has the label {label!r}, not a number")
    return float(label)


def count_classes(train: Collection[int], others: Mapping[str, Collection[int]]) -> int:
    """The number of classes in the training data, at least two.

    Args:
        train: the classes that the training data have.
        others: by set, those of the sets that are evaluated.

    Raises:
        TrainError: a set has a class that training does not.
    """
    for name, classes in others.items():
        unknown = sorted(set(classes) - set(train))
        if unknown:
            raise TrainError(f"{name} has classes {unknown}, which the training data does not have")
    return max(2, max(train) + 1)
