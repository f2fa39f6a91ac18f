"""Labels of classification data."""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ftcluster_common.data_files import short
from ftcluster_train.errors import TrainError

MOST_CLASSES = 1000
WHOLE = re.compile(r"-?\d+(\.0*)?")
SHOWN = 8
MOST_DIGITS = 16  # of a number of a class


@dataclass(frozen=True)
class ClassLabels:
    """How the labels of a column are read.

    Attributes:
        numbers: the class of each label; empty where labels are the numbers of classes.
        owner: whose classes these are, for messages.
    """

    numbers: Mapping[str, int]
    owner: str = "the training data"

    @property
    def names(self) -> list[str]:
        """The labels by their class."""
        return sorted(self.numbers, key=self.numbers.__getitem__)

    def read(self, label: Any, where: str) -> int:
        """The class of a row.

        Raises:
            TrainError: it has none, or one that is not known.
        """
        word = as_word(label)
        if not self.numbers:
            number = WHOLE.fullmatch(word) and len(word) < MOST_DIGITS
            return read_class(int(float(word)) if number else label, where)
        if word not in self.numbers:
            names = self.names
            shown = ", ".join(names[:SHOWN]) + (" ..." if len(names) > SHOWN else "")
            raise TrainError(f"{where} has the label {short(label)}, and {self.owner} has {shown}")
        return self.numbers[word]


def find_labels(labels: Iterable[Any], column: str) -> list[str]:
    """The different labels of a column, numbers by their size and words by their letters.

    Raises:
        TrainError: they are too many to be classes, are numbers with fractions, or some of them
            are words and others are not.
    """
    rows, kinds, words = 0, set(), set()
    for label in labels:
        rows += 1
        words.add(as_word(label))
        kinds.add(isinstance(label, str | bool))
    if "" in words:
        raise TrainError(f"a row has no label in column {column}", "leave such rows out")
    if len(kinds) > 1:
        raise TrainError(f"some labels in column {column} are words, and others are not")
    name = "name the column of the class: label_column=NAME; for numbers: regression=true"
    numbers = all(map(_is_number, words))
    if numbers and not all(map(WHOLE.fullmatch, words)):
        raise TrainError(f"the labels in column {column} are numbers, not classes", name)
    if len(words) > min(MOST_CLASSES, max(rows / 2, SHOWN)):
        raise TrainError(f"column {column} has {len(words)} different labels in {rows} rows", name)
    return sorted(words, key=lambda word: (float(word) if numbers else 0, word))


def number_labels(words: Sequence[str]) -> dict[str, int]:
    """The class of each label; none where labels are the numbers of classes, 0, 1 and so on.

    Args:
        words: as `find_labels` returns them.

    >>> number_labels(["0", "1"]), number_labels(["1", "2"]), number_labels(["01", "1"])
    ({}, {'1': 0, '2': 1}, {'01': 0, '1': 1})
    """
    if list(words) == [str(number) for number in range(len(words))] or words[:1] == ["-1"]:
        return {}
    return {word: number for number, word in enumerate(words)}


def as_word(label: Any) -> str:
    """A label as the name of its class; "" where there is none.

    >>> as_word(" good "), as_word(True), as_word(2.0), as_word(None)
    ('good', 'true', '2', '')
    """
    if label is None or (isinstance(label, float) and math.isnan(label)):
        return ""
    if isinstance(label, bool):
        return str(label).lower()
    whole = isinstance(label, float) and label.is_integer()  # of pandas, where others are missing
    return str(int(label)) if whole else str(label).strip()


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
            f"{where} has the label {short(label)}, not a class number (0, 1, ...)",
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
    if not number or not _is_number(str(label)):
        raise TrainError(f"{where} has the label {short(label)}, not a number")
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
