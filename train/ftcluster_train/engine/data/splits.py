"""Choice of the rows that become the validation set and the test set of a training.

The same rows and the same seed give the same sets on every host. Standard library only.
"""

import random
from array import array
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from ftcluster_train.errors import TrainError

Key = TypeVar("Key", bound=Hashable)

SHOWN = 3  # number of group names in a message


class RowKeys(NamedTuple):
    """The values that decide which rows get into the same set.

    Attributes:
        column: name of the values in messages.
        values: a value for each row; empty if nothing decides.
        together: True if rows with the same value stay together, False if each set has the
            proportions of the values.
    """

    column: str
    values: Sequence[Hashable]
    together: bool = False


def size_of(count: int, percent: float, rows: int | None) -> int:
    """Return the number of rows of a set: `rows`, or else a share of `count`, at least 1.

    >>> size_of(205, 10, None), size_of(3, 10, None), size_of(205, 10, 7)
    (20, 1, 7)
    """
    return max(1, round(count * percent / 100)) if rows is None else rows


def split_rows(count: int, sizes: Mapping[str, int], seed: int) -> dict[str, frozenset[int]]:
    """Draw `sizes` of `count` rows, and return the indices of each set.

    Raises:
        TrainError: no row would stay for training.
    """
    _check_sizes(count, sizes)
    order = array("q", range(count))
    random.Random(seed).shuffle(order)
    sets: dict[str, frozenset[int]] = {}
    for name, size in sizes.items():
        sets[name], order = frozenset(order[:size]), order[size:]
    return sets


def split_strata(
    strata: Sequence[Hashable], sizes: Mapping[str, int], seed: int, column: str = ""
) -> dict[str, frozenset[int]]:
    """Draw rows so that each set has the proportions of the strata, within one row per stratum.

    Args:
        strata: stratum of each row, such as its class.
        column: name of the column if the user asks for it. Each set then gets rows of each stratum.
            If "", a rare stratum may be in the training set only.

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
    sets: dict[str, frozenset[int]] = {}
    totals = {key: len(numbers) for key, numbers in rows.items()}
    for name, size in sizes.items():
        free = {key: len(numbers) - 1 for key, numbers in rows.items()}  # one row stays
        counts = _quotas(totals, free, size)
        sets[name] = frozenset(n for key in rows for n in rows[key][: counts[key]])
        rows = {key: numbers[counts[key] :] for key, numbers in rows.items()}
    return sets


def rows_by_key(keys: Iterable[Hashable]) -> "dict[Hashable, array[int]]":
    """Return the indices of the rows that have each key, in 8 bytes for each row."""
    rows: dict[Hashable, array[int]] = {}
    for number, key in enumerate(keys):
        if key not in rows:
            rows[key] = array("q")
        rows[key].append(number)
    return rows


def numbers_of_keys(keys: Iterable[Hashable]) -> "array[int]":
    """Return a number for each key, in 8 bytes; equal keys have equal numbers, from 0.

    >>> numbers_of_keys(["b", "a", "b"])
    array('q', [0, 1, 0])
    """
    numbers: dict[Hashable, int] = {}
    return array("q", (numbers.setdefault(key, len(numbers)) for key in keys))


def shared(values: Iterable[Key]) -> Iterator[Key]:
    """Yield values; equal values are the same object, so that a list of them needs less memory."""
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
    """Return the number of rows of each stratum in a set of `size` rows, by largest remainders.

    Args:
        totals: number of rows of each stratum in the data.
        free: maximum number of rows of each stratum that the set can have.
    """
    every = sum(totals.values())
    counts = {key: min(size * total // every, free[key]) for key, total in totals.items()}
    # the difference to the exact share decides which strata get one more row
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
) -> tuple[dict[str, frozenset[int]], list[str]]:
    """Draw whole groups, so that the rows of a group are all in the same set.

    The groups are tried in random order. A set takes each group that it has space for. If there is
    no such group, it takes the smallest one.

    Args:
        groups: group of each row.
        column: name of the column with the groups, for messages.

    Returns:
        Indices of the rows of each set, and notices about sets of another size.

    Raises:
        TrainError: there are fewer groups than sets, or no row would stay for training.
    """
    _check_sizes(len(groups), sizes)
    rows = rows_by_key(groups)
    if len(rows) <= len(sizes):
        raise TrainError(
            f"column {column} has {len(rows)} different values; training and {', '.join(sizes)} "
            f"need at least {len(sizes) + 1}",
            "name another column: group_column=NAME",
        )
    order = [*rows]
    random.Random(seed).shuffle(order)
    sets: dict[str, frozenset[int]] = {}
    notices: list[str] = []
    for position, (name, size) in enumerate(sizes.items(), start=1):
        needed_later = len(sizes) - position + 1  # groups for the other sets and for training
        chosen: list[Hashable] = []
        space = size
        for group in order:
            if len(rows[group]) <= space and len(order) - len(chosen) > needed_later:
                chosen.append(group)
                space -= len(rows[group])
        large = [group for group in order if len(rows[group]) > size]
        if not chosen:
            chosen = [min(order, key=lambda group: len(rows[group]))]
        sets[name] = frozenset(number for group in chosen for number in rows[group])
        if large:
            shown = ", ".join(f"{group!s:.40} ({len(rows[group])} rows)" for group in large[:SHOWN])
            more = f" and {len(large) - SHOWN} more" if large[SHOWN:] else ""
            notices.append(
                f"{name}: groups of column {column} have more rows than the {size} that this set "
                f"should have: {shown}{more}"
            )
        if len(sets[name]) != size:
            notices.append(
                f"{name}: {len(sets[name])} rows instead of {size}, because groups of column "
                f"{column} are not divided"
            )
        order = [group for group in order if group not in {*chosen}]
    return sets, notices


def rows_of_fold(
    keys: Sequence[Hashable], together: bool, folds: int, fold: int, seed: int, column: str
) -> frozenset[int]:
    """Return the indices of the rows of one of the parts for cross-validation.

    Each row is in exactly one part. With groups, the largest group comes first, and each group is
    added to the smallest part, as in scikit-learn's GroupKFold. With strata, the rows of each
    stratum are dealt to the parts in turn, so that no two parts differ by more than a row in any
    stratum, nor in their size.

    Args:
        keys: group or stratum of each row.
        together: True if keys are groups, whose rows stay together; False if they are strata.
        folds: number of parts.
        fold: number of the part, from 1.
        column: name of the column with the keys, for messages.

    Raises:
        TrainError: there are fewer rows or groups than parts.
    """
    rows = rows_by_key(keys)
    count, units = (len(rows), "groups") if together else (len(keys), "rows")
    if count < folds:
        where = f" in column {column}" if together else ""
        raise TrainError(
            f"{folds} folds need at least {folds} {units}; the training data have {count}{where}",
            f"use fewer folds: folds={max(count, 2)}",
        )
    draw = random.Random(seed)
    if not together:
        for numbers in rows.values():
            draw.shuffle(numbers)
        dealt = [number for numbers in rows.values() for number in numbers]
        return frozenset(dealt[fold - 1 :: folds])
    groups = [*rows.values()]
    draw.shuffle(groups)
    parts: list[list[int]] = [[] for _ in range(folds)]
    for numbers in sorted(groups, key=len, reverse=True):
        min(parts, key=len).extend(numbers)
    return frozenset(parts[fold - 1])


def _check_sizes(count: int, sizes: Mapping[str, int]) -> None:
    if sum(sizes.values()) >= count:
        asked = ", ".join(f"{size} for {name}" for name, size in sizes.items())
        raise TrainError(
            f"the data have {count} rows, and no row stays for training: {asked}",
            "add rows, or make these sets smaller",
        )
