"""Choose the rows for training, validation, evaluation and prediction.

Standard library only.
"""

import random
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain

from ftcluster_common.data.columns import is_incomplete
from ftcluster_common.data.data_files import TEST, TRAIN, VALIDATION, Row
from ftcluster_common.data.data_sets import is_train
from ftcluster_common.protocol.job import EVALUATE, PREDICT, Purpose
from ftcluster_train.engine.data.sources import Rows, class_names, places
from ftcluster_train.engine.data.splits import RowNumbers, rows_by_key, sample
from ftcluster_train.errors import TrainError

PREDICTED = "predict"  # name of the set whose rows are predicted
SEED = 42  # seed for drawing validation rows; equal for all runs, so that metrics are comparable


def choose_sets(
    found: Mapping[str, Rows],
    purpose: Purpose,
    validation: Sequence[str],
    data: str,
    tests: bool = False,
) -> dict[str, Rows]:
    """Return the sets of rows that the job reads, by name.

    For training, the data need not contain a validation set, see `draw_rows`.

    Args:
        validation: names of the validation sets.
        tests: True to also return the test set, if the data have one.

    Raises:
        TrainError: the data lack a set that the job needs.
    """
    if purpose == PREDICT:
        name = "test" if "test" in found else next(iter(found))
        if len(found) > 1 and name != "test":
            names = ", ".join(found)
            raise TrainError(
                f"data '{data}' has several sets: {names}", "name one file: --data FILE"
            )
        return {PREDICTED: found[name]}
    if purpose == EVALUATE and len(found) == 1:
        return {VALIDATION: next(iter(found.values()))}
    wanted = (*([] if purpose == EVALUATE else [TRAIN]), *validation)
    missing = [name for name in wanted if name not in found]
    if purpose != EVALUATE and tuple(validation) == tuple(missing) == (VALIDATION,):
        wanted, missing = (TRAIN,), [name for name in (TRAIN,) if name not in found]
    if missing:
        names = ", ".join(found) or "none"
        raise TrainError(f"data '{data}' has no split {', '.join(missing)}; found {names}")
    more = [TEST] if tests and purpose == "train" and TEST in found else []
    return {name: found[name] for name in (*wanted, *more)}


def draw_rows(classes: Iterable[Hashable], percent: float, seed: int) -> RowNumbers:
    """Draw the same fraction of each class for validation, and return the row indices.

    From a class with at least two rows, at least one row is drawn, and at least one row is left for
    training. This function needs up to 13 bytes of memory per row.

    Args:
        classes: class of each row.

    Raises:
        TrainError: there are too few rows.
    """
    numbers = rows_by_key(classes)
    draw = random.Random(seed)

    def drawn_of(rows: Sequence[int]) -> Sequence[int]:
        share = max(1, round(len(rows) * percent / 100))
        return sample(draw, rows, min(share, len(rows) - 1))

    chosen = RowNumbers(chain.from_iterable(map(drawn_of, numbers.values())))
    if not chosen:
        raise TrainError(
            f"the data have {sum(map(len, numbers.values()))} rows and no set {VALIDATION}",
            "add rows, two or more of each class, or a file validation.csv",
        )
    return chosen


def values_of(rows: Rows, column: str, split: str) -> list[str]:
    """Return a column's value in each row, as a string; equal values share one string.

    Raises:
        TrainError: a row has no value in the column.
    """
    values: list[str] = []
    different: dict[str, str] = {}
    for where, row in places(rows, split):
        value = row.get(column)
        if value is None or value == "":
            lacks = "an empty" if column in row else "no"
            raise TrainError(
                f"{where} has {lacks} column {column}; the data have {', '.join(row)}",
                "give each row a value, or name another column in the recipe",
            )
        values.append(different.setdefault(text := str(value), text))
    return values


@dataclass(frozen=True)
class RenamedRows:
    """The rows of `rows`, with some columns renamed.

    Attributes:
        names: new name of each renamed column.
        split: name of the set; messages use it to say where a row is.
    """

    rows: Rows
    names: Mapping[str, str]
    split: str

    def __iter__(self) -> Iterator[Row]:
        return map(self._renamed, self.rows)

    def with_places(self) -> Iterator[tuple[str, Row]]:
        """Yield each row with its place in the data."""
        return ((where, self._renamed(row)) for where, row in places(self.rows, self.split))

    def class_names(self, column: str) -> list[str]:
        """Return the class names of a column, or [] if the data do not have them."""
        original = {new: name for name, new in self.names.items()}
        return class_names(self.rows, original.get(column, column))

    def _renamed(self, row: Row) -> Row:
        # skip a column if another column is renamed to its name
        others = {k: v for k, v in row.items() if k not in self.names.values()}
        return others | {new: row[name] for name, new in self.names.items() if name in row}


@dataclass(frozen=True)
class JoinedRows:
    """The rows of several sets, one set after the other."""

    sets: Sequence[Rows]

    def __iter__(self) -> Iterator[Row]:
        return chain.from_iterable(self.sets)

    def with_places(self) -> Iterator[tuple[str, Row]]:
        """Yield each row with its place in the data."""
        return chain.from_iterable(places(rows, TRAIN) for rows in self.sets)


def all_rows(sets: Mapping[str, Rows]) -> Rows:
    """Return the rows of all training sets, or of all sets if there is no training set."""
    trained = [rows for name, rows in sets.items() if is_train(name)]
    chosen = trained or [*sets.values()]
    return chosen[0] if len(chosen) == 1 else JoinedRows(chosen)


class Complete:
    """The rows of `rows` that have a value in each of `columns`; other rows are skipped.

    Attributes:
        left_out: number of rows that the last iteration skipped.
    """

    def __init__(self, rows: Rows, split: str, columns: Sequence[str]) -> None:
        self._rows, self._split, self._columns = rows, split, columns
        self.left_out = 0

    def __iter__(self) -> Iterator[Row]:
        return (row for _, row in self.with_places())

    def with_places(self) -> Iterator[tuple[str, Row]]:
        """Yield each row with its place in the data."""
        left_out = 0
        for where, row in places(self._rows, self._split):
            if is_incomplete(row, self._columns):
                left_out += 1
            else:
                yield where, row
        self.left_out = left_out


@dataclass(frozen=True)
class PartOfRows:
    """The rows with the indices in `numbers`, or all other rows.

    Attributes:
        inside: True for the rows with these indices, False for all other rows.
    """

    rows: Rows
    numbers: Set[int]
    inside: bool
    split: str = TRAIN  # name of the set that has the rows

    def __iter__(self) -> Iterator[Row]:
        return (row for _, row in self.with_places())

    def with_places(self) -> Iterator[tuple[str, Row]]:
        """Yield each row with its place in the data."""
        rows = enumerate(places(self.rows, self.split))
        return (row for number, row in rows if (number in self.numbers) == self.inside)
