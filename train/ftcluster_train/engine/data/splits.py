"""Choose which rows of the training data become the validation set and the test set.

Given the same rows and seed, every host chooses the same sets. Standard library only.
"""

import math
import random
from array import array
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain
from typing import NamedTuple, TypeVar

from ftcluster_common.models.row_hashes import HashNumbers
from ftcluster_train.errors import TrainError

Key = TypeVar("Key", bound=Hashable)

SHOWN = 3  # number of group names in a message
INDEX = "I"  # type code (module array) of row indices


class RowNumbers(Set[int]):
    """A set of row indices that needs one byte for each row of the data.

    A `frozenset` needs about 80 bytes for each of its elements. The indices are iterated in
    ascending order.
    """

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._flags, self._count = bytearray(), 0
        for number in numbers:
            if number >= len(self._flags):
                self._flags.extend(bytes(number + 1 - len(self._flags)))
            self._count += not self._flags[number]
            self._flags[number] = 1

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and number < len(self._flags) and bool(self._flags[number])

    def __iter__(self) -> Iterator[int]:
        number = self._flags.find(1)
        while number >= 0:
            yield number
            number = self._flags.find(1, number + 1)

    def __len__(self) -> int:
        return self._count


class RowKeys(NamedTuple):
    """The values by which rows are assigned to sets.

    Attributes:
        column: name of the values in messages.
        values: one value per row; empty if rows are assigned purely at random.
        together: True if all rows with the same value go into the same set. False if each value
            has the same share of the rows in every set.
    """

    column: str
    values: Sequence[Hashable]
    together: bool = False


def size_of(count: int, percent: float, rows: int | None) -> int:
    """Return the number of rows in a set: `rows`, or `percent` of `count` (at least 1) if None.

    >>> size_of(205, 10, None), size_of(3, 10, None), size_of(205, 10, 7)
    (20, 1, 7)
    """
    return max(1, round(count * percent / 100)) if rows is None else rows


def sample(draw: random.Random, population: Sequence[int], count: int) -> "array[int]":
    """Return the elements that `draw.sample` would return, with 4 bytes for each element.

    The method of the standard library needs up to 40 bytes for each element of the population. It
    either swaps each drawn element out of a copy of the population, or draws indices until it finds
    a new one. This function makes the same choice, and draws the same random numbers.
    """
    total, chosen = len(population), array(INDEX)
    most_swapped = 21 + (4 ** math.ceil(math.log(count * 3, 4)) if count > 5 else 0)
    if total <= most_swapped:
        pool = array(INDEX, population)
        for drawn in range(count):
            place = draw.randrange(total - drawn)
            chosen.append(pool[place])
            pool[place] = pool[total - drawn - 1]
        return chosen
    seen = bytearray(total)
    for _ in range(count):
        place = draw.randrange(total)
        while seen[place]:
            place = draw.randrange(total)
        seen[place] = 1
        chosen.append(population[place])
    return chosen


def split_rows(count: int, sizes: Mapping[str, int], seed: int) -> dict[str, RowNumbers]:
    """Draw `sizes` of `count` rows, and return the indices of each set.

    Raises:
        TrainError: no row would be left for training.
    """
    _check_sizes(count, sizes)
    order = array(INDEX, range(count))
    random.Random(seed).shuffle(order)
    sets: dict[str, RowNumbers] = {}
    begin = 0
    for name, size in sizes.items():
        sets[name] = RowNumbers(order[begin : begin + size])
        begin += size
    return sets


def split_strata(
    strata: Sequence[Hashable], sizes: Mapping[str, int], seed: int, column: str = ""
) -> dict[str, RowNumbers]:
    """Draw rows so that the strata have the same proportions in each set, within one row each.

    Args:
        strata: stratum of each row, such as its class.
        column: name of the column with the strata, if the user has chosen it. Each set must then
            get rows from every stratum. If "", only the training set may have rows from a rare
            stratum.

    Raises:
        TrainError: a set has too few rows, or `column` has a value with too few rows.
    """
    _check_sizes(len(strata), sizes)
    rows = rows_by_key(strata)
    if column:
        _check_strata(rows, sizes, column)
    draw = random.Random(seed)
    for numbers in rows.values():
        draw.shuffle(numbers)
    sets: dict[str, RowNumbers] = {}
    totals = {key: len(numbers) for key, numbers in rows.items()}
    for name, size in sizes.items():
        free = {key: len(numbers) - 1 for key, numbers in rows.items()}  # one row is left
        counts = _quotas(totals, free, size)
        sets[name] = RowNumbers(n for key in rows for n in rows[key][: counts[key]])
        rows = {key: numbers[counts[key] :] for key, numbers in rows.items()}
    return sets


def rows_by_key(keys: Iterable[Hashable]) -> "dict[Hashable, array[int]]":
    """Return the row indices for each key; each row needs 4 bytes."""
    rows: dict[Hashable, array[int]] = {}
    for number, key in enumerate(keys):
        if key not in rows:
            rows[key] = array(INDEX)
        rows[key].append(number)
    return rows


def numbers_of_keys(keys: Iterable[Hashable]) -> "tuple[array[int], list[Hashable]]":
    """Return the number of each key, and the different keys in the order of their numbers.

    >>> numbers_of_keys(["b", "a", "b"])
    (array('I', [0, 1, 0]), ['b', 'a'])
    """
    numbers: dict[Hashable, int] = {}
    of_keys = array(INDEX, (numbers.setdefault(key, len(numbers)) for key in keys))
    return of_keys, list(numbers)


def numbers_of_hashes(hashes: Iterable[int]) -> "array[int]":
    """Number 64-bit hashes from 0, so that equal hashes get equal numbers.

    Each number needs 4 bytes, and each different hash up to 20 until the function returns.

    >>> numbers_of_hashes([7, 5, 7])
    array('I', [0, 1, 0])
    """
    numbers = HashNumbers()
    return array(INDEX, map(numbers.add, hashes))


def shared(values: Iterable[Key]) -> Iterator[Key]:
    """Yield the values, with one object for all equal values, so that a list needs less memory."""
    different: dict[Key, Key] = {}
    return (different.setdefault(value, value) for value in values)


def _check_strata(
    rows: Mapping[Hashable, Sequence[int]], sizes: Mapping[str, int], column: str
) -> None:
    needed = len(sizes) + 1
    if few := [name for name, numbers in rows.items() if len(numbers) < needed]:
        shown = ", ".join(f"{name!s:.40} ({len(rows[name])})" for name in few[:SHOWN])
        more = f" and {len(few) - SHOWN} more" if few[SHOWN:] else ""
        raise TrainError(
            f"column {column} has too few rows of {shown}{more}: training and {', '.join(sizes)} "
            f"need {needed} rows of each value",
            "add rows with these values, or remove stratify_column",
        )
    for name, size in sizes.items():
        if size < len(rows):
            raise TrainError(
                f"{name} gets {size} rows, fewer than the {len(rows)} values of column {column}",
                f"increase its size: {name}_split_rows={len(rows)}",
            )


def _quotas(
    totals: Mapping[Hashable, int], free: Mapping[Hashable, int], size: int
) -> dict[Hashable, int]:
    """Divide the `size` rows of a set among the strata with the largest remainder method.

    Args:
        totals: number of rows of each stratum in the data.
        free: maximum number of rows from each stratum that the set may get.
    """
    every = sum(totals.values())
    counts = {key: min(size * total // every, free[key]) for key, total in totals.items()}
    # the strata that are furthest below their exact share get one more row
    while (missing := size - sum(counts.values())) > 0:
        unfilled = [key for key in totals if counts[key] < free[key]]
        unfilled.sort(key=lambda key: counts[key] - size * totals[key] / every)
        if not unfilled:
            break
        for key in unfilled[:missing]:
            counts[key] += 1
    return counts


def split_groups(
    groups: Sequence[Hashable], sizes: Mapping[str, int], seed: int, column: str
) -> tuple[dict[str, RowNumbers], list[str]]:
    """Draw whole groups, so that all rows of a group are in the same set.

    The groups are tried in random order. A set takes every group that fits into it. If no group
    fits, the set takes the smallest group.

    Args:
        groups: group of each row.
        column: name of the column with the groups, for messages.

    Returns:
        The row indices of each set, and notices about sets whose size differs from the request.

    Raises:
        TrainError: there are fewer groups than sets, or no row would stay for training.
    """
    _check_sizes(len(groups), sizes)
    group_of, names = numbers_of_keys(groups)
    counts = array(INDEX, [0]) * len(names)
    for group in group_of:
        counts[group] += 1
    if len(names) <= len(sizes):
        raise TrainError(
            f"column {column} has {len(names)} different values; training and {', '.join(sizes)} "
            f"need at least {len(sizes) + 1}",
            "name another column: group_column=NAME",
        )
    order = array(INDEX, range(len(names)))
    random.Random(seed).shuffle(order)
    sets: dict[str, RowNumbers] = {}
    notices: list[str] = []
    for position, (name, size) in enumerate(sizes.items(), start=1):
        needed_later = len(sizes) - position + 1  # groups for the other sets and for training
        fitting = array(INDEX)
        space = size
        for group in order:
            if counts[group] <= space and len(order) - len(fitting) > needed_later:
                fitting.append(group)
                space -= counts[group]
        large = [group for group in order if counts[group] > size]
        chosen = RowNumbers(fitting or [min(order, key=counts.__getitem__)])
        sets[name] = RowNumbers(n for n, group in enumerate(group_of) if group in chosen)
        if large:
            shown = ", ".join(
                f"{names[group]!s:.40} ({counts[group]} rows)" for group in large[:SHOWN]
            )
            more = f" and {len(large) - SHOWN} more" if len(large) > SHOWN else ""
            notices.append(
                f"{name}: groups of column {column} have more rows than the {size} that this set "
                f"should have: {shown}{more}"
            )
        if len(sets[name]) != size:
            notices.append(
                f"{name}: {len(sets[name])} rows instead of {size}, because groups of column "
                f"{column} are not divided"
            )
        order = array(INDEX, (group for group in order if group not in chosen))
    return sets, notices


def rows_of_fold(
    keys: Sequence[Hashable], together: bool, folds: int, fold: int, seed: int, column: str
) -> RowNumbers:
    """Return the row indices of one part (fold) for cross-validation.

    Each row is in exactly one part. Groups are added to the smallest part, starting with the
    largest group, as in scikit-learn's GroupKFold. The rows of each stratum are dealt to the parts
    in turn. The numbers of rows in any two parts thus differ by at most one, in total and for each
    stratum.

    Args:
        keys: group or stratum of each row.
        together: True if keys are groups, whose rows stay together; False if they are strata.
        folds: number of parts.
        fold: number of the part, from 1.
        column: name of the column with the keys, for messages.

    Raises:
        TrainError: there are fewer rows or groups than parts.
    """
    group_of, names = numbers_of_keys(keys) if together else (array(INDEX), [])
    count, units = (len(names), "groups") if together else (len(keys), "rows")
    if count < folds:
        where = f" in column {column}" if together else ""
        raise TrainError(
            f"{folds} folds need at least {folds} {units}; the training data have {count}{where}",
            f"use fewer folds: folds={max(count, 2)}",
        )
    draw = random.Random(seed)
    if not together:
        rows = rows_by_key(keys)
        for numbers in rows.values():
            draw.shuffle(numbers)
        dealt = array(INDEX, chain.from_iterable(rows.values()))
        return RowNumbers(dealt[fold - 1 :: folds])
    counts = array(INDEX, [0]) * len(names)
    for group in group_of:
        counts[group] += 1
    groups = array(INDEX, range(len(names)))
    draw.shuffle(groups)
    parts = [0] * folds  # number of rows of each part
    chosen = array(INDEX)
    for group in sorted(groups, key=counts.__getitem__, reverse=True):
        smallest = parts.index(min(parts))
        parts[smallest] += counts[group]
        if smallest == fold - 1:
            chosen.append(group)
    of_fold = RowNumbers(chosen)
    return RowNumbers(number for number, group in enumerate(group_of) if group in of_fold)


def _check_sizes(count: int, sizes: Mapping[str, int]) -> None:
    if sum(sizes.values()) >= count:
        asked = ", ".join(f"{size} for {name}" for name, size in sizes.items())
        raise TrainError(
            f"the data have {count} rows, and no row stays for training: {asked}",
            "add rows, or make these sets smaller",
        )
