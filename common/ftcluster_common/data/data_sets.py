"""The data sets of a training run. Standard library only.

A recipe names one data set or several. `Recipe.data_sets` returns them in both cases, and
`Recipe.by_set` returns a recipe for each data set.
"""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any, Literal

from ftcluster_common.data.data_files import TEST, TRAIN, WORDS

Mixing = Literal["proportional", "equal"]
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{,63}")
NOT_IN_NAME = re.compile(r"[^A-Za-z0-9_-]+")
MOST_CHARACTERS = 40  # maximum length of a default name
UNNAMED = "data"  # name of a data set whose path contains no character allowed in names
PART = "_"  # separator between the name of a split and the name of a data set


@dataclass(frozen=True)
class DataSet:
    """One of the data sets that a training run mixes.

    Attributes:
        path: file, folder, or name on the Hugging Face Hub, as in the recipe's field `data`.
        name: name in metrics and messages; "" if there is only one data set.
        weight: share of the samples, relative to the weights of the other data sets; None if the
            recipe's `data_mixing` decides.
        data_config: configuration of a data set on the Hub; None means the recipe's data_config.
        fields: values of the task's fields that differ from the recipe's values, by field.
    """

    path: str
    name: str = ""
    weight: float | None = None
    data_config: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


def with_names(data_sets: Sequence[DataSet]) -> tuple[DataSet, ...]:
    """Return the data sets with distinct names; the default name is the name of the file or folder.

    >>> paths = ["d/a.csv", "a.jsonl", "x/y@1", "faq/train.csv"]
    >>> [data_set.name for data_set in with_names([DataSet(path) for path in paths])]
    ['a', 'a_2', 'y', 'faq']
    """
    taken = {data_set.name for data_set in data_sets if data_set.name}
    named = []
    for data_set in data_sets:
        plain = _name_of(data_set.path)
        numbered = (f"{plain}_{number}" for number in itertools.count(2))
        free = (name for name in itertools.chain([plain], numbered) if name not in taken)
        name = data_set.name or next(free)
        taken.add(name)
        named.append(replace(data_set, name=name))
    return tuple(named)


def _name_of(path: str) -> str:
    """Return the default name of a data set: its file's or folder's name without the extension.

    Characters that are not allowed in names become _. A file such as train.csv gets the name of its
    folder.
    """
    place = PurePath(path.partition("@")[0])
    stem = place.name.partition(".")[0] or place.name
    if stem.lower() in WORDS and place.suffix and place.parent.name:
        stem = place.parent.name
    return NOT_IN_NAME.sub("_", stem).strip("_-")[:MOST_CHARACTERS] or UNNAMED


def split_name(split: str, data_set: str) -> str:
    """Return a name for a data set's split that is unique in the training run.

    >>> split_name("train", "reviews"), split_name("train", "")
    ('train_reviews', 'train')
    """
    return f"{split}{PART}{data_set}" if data_set else split


def data_set_of(split: str, names: Iterable[str]) -> str:
    """Return the name of the data set that a split belongs to; "" if it belongs to none of `names`.

    >>> data_set_of("train_b_a", ["a", "b_a"]), data_set_of("train", [""])
    ('b_a', '')
    """
    fitting = (name for name in names if name and split.endswith(f"{PART}{name}"))
    return max(fitting, key=len, default="")


def is_train(split: str) -> bool:
    """Return True if the split with this name is a training set.

    >>> is_train("train"), is_train("train_reviews"), is_train("validation_reviews")
    (True, True, False)
    """
    return split == TRAIN or split.startswith(f"{TRAIN}{PART}")


def is_test(split: str) -> bool:
    """Return True if the split with this name is a test set.

    >>> is_test("test"), is_test("test_reviews"), is_test("tests")
    (True, True, False)
    """
    return split == TEST or split.startswith(f"{TEST}{PART}")


def weights_of(data_sets: Sequence[DataSet], mixing: Mixing) -> list[float] | None:
    """Return the weight of each data set; None means that each row is read once per epoch.

    If any data set has a weight, the default weight of the others is 1.

    >>> weights_of([DataSet("a"), DataSet("b", weight=3.0)], "proportional")
    [1.0, 3.0]
    """
    weights = [data_set.weight for data_set in data_sets]
    if mixing == "proportional" and not any(weights):
        return None
    return [1.0 if weight is None else weight for weight in weights]
