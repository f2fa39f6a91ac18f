"""Labels of classification data."""

import math
from collections.abc import Collection, Mapping
from typing import Any

from ftcluster_train.errors import TrainError


def read_class(label: Any, where: str) -> int:
    """The class number of a row.

    Raises:
        TrainError: it is not a class number; -1 means "not labelled" in many test sets.
    """
    if isinstance(label, bool) or not isinstance(label, int):
        raise TrainError(
            f"{where} has the label {label!r}, not a class number (0, 1, ...)",
            "for other numbers set regression: true",
        )
    if label < 0:
        raise TrainError(f"{where} has the label {label}, so it is not labelled")
    return label


def read_number(label: Any, where: str) -> float:
    """The label of a row in a regression.

    Raises:
        TrainError: it is not a number.
    """
    number = isinstance(label, int | float) and not isinstance(label, bool)
    if not number or not math.isfinite(label):
        raise TrainError(f"{where} has the label {label!r}, not a number")
    return float(label)


def count_classes(train: Collection[int], others: Mapping[str, Collection[int]]) -> int:
    """The number of classes in the training data, at least two.

    Raises:
        TrainError: another set has a class that the training data does not have.
    """
    for name, classes in others.items():
        unknown = sorted(set(classes) - set(train))
        if unknown:
            raise TrainError(f"{name} has classes {unknown}, which the training data does not have")
    return max(2, max(train) + 1)
