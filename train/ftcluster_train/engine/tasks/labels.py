"""Labels of classification data."""

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ftcluster_train.errors import TrainError

MOST_WORDS = 1000  # more different ones are no classes
WHOLE = re.compile(r"-?\d+")
SHOWN = 8


@dataclass(frozen=True)
class ClassLabels:
    """How the labels of a column are read.

    Attributes:
        numbers: the class of each word; empty where labels are numbers.
        owner: whose classes these are, for messages.
    """

    numbers: Mapping[str, int]
    owner: str = "the training data"

    @property
    def names(self) -> list[str]:
        """The words by their class."""
        return sorted(self.numbers, key=self.numbers.__getitem__)

    def read(self, label: Any, where: str) -> int:
        """The class of a row.

        Raises:
            TrainError: it has none, or one that is not known.
        """
        if not self.numbers:
            whole = isinstance(label, str) and WHOLE.fullmatch(label.strip())
            return read_class(int(label) if whole else label, where)
        word = as_word(label)
        if word not in self.numbers:
            names = self.names
            shown = ", ".join(names[:SHOWN]) + (" ..." if len(names) > SHOWN else "")
            raise TrainError(f"{where} has the label {label!r}, and {self.owner} has {shown}")
        return self.numbers[word]


def find_labels(labels: Iterable[Any], column: str) -> ClassLabels:
    """How a column's labels are read: as numbers, or as words, which are sorted.

    Raises:
        TrainError: they are too many to be classes, or some of them are words and others are not.
    """
    rows, kinds, words = 0, set(), set()
    for label in labels:
        rows += 1
        text = isinstance(label, str | bool)
        kinds.add(text)
        if text:
            words.add(as_word(label))
    if len(kinds) > 1:
        raise TrainError(f"some labels in column {column} are words, and others are not")
    if kinds != {True} or all(map(WHOLE.fullmatch, words)):
        return ClassLabels({})
    if "" in words:
        raise TrainError(f"a row has no label in column {column}", "leave such rows out")
    name = "name the column of the class: label_column=NAME; for numbers: regression=true"
    if all(map(_is_number, words)):
        raise TrainError(f"the labels in column {column} are numbers, not classes", name)
    if len(words) > min(MOST_WORDS, max(rows / 2, SHOWN)):
        raise TrainError(f"column {column} has {len(words)} different labels in {rows} rows", name)
    return ClassLabels({word: number for number, word in enumerate(sorted(words))})


def as_word(label: Any) -> str:
    """A label as the name of its class.

    >>> as_word(" good "), as_word(True)
    ('good', 'true')
    """
    return str(label).lower() if isinstance(label, bool) else str(label).strip()


def _is_number(word: str) -> bool:
    try:
        return math.isfinite(float(word))
    except ValueError:
        return False


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
    if isinstance(label, str) and _is_number(label):
        return float(label)  # in CSV
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
