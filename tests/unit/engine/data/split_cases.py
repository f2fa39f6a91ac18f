"""Divisions of rows into sets that are recorded in split_rows.json.

The digests were recorded when sets of rows were Python sets of integers. A resumed run divides its
rows again, so no later version may change them.
"""

import hashlib
from collections.abc import Iterable, Iterator

from ftcluster_train.engine.data.sets import draw_rows
from ftcluster_train.engine.data.splits import rows_of_fold, split_groups, split_rows, split_strata

SIZES = (5, 40, 403, 5000)
PERCENTS = (0.5, 3, 10, 50)


def divisions() -> Iterator[tuple[str, Iterable[int]]]:
    """Yield the name and the rows of each recorded set."""
    for count in SIZES:
        classes = [f"class {n * n % 7 % 3}" for n in range(count)]
        groups = [f"group {n * 31 % (count // 4 + 3)}" for n in range(count)]
        for percent in PERCENTS:
            yield f"{count} rows, {percent} %", draw_rows((0 for _ in classes), percent, count)
            yield f"{count} rows of classes, {percent} %", draw_rows(classes, percent, 7)
            sizes = {"test": max(1, round(count * percent / 200)), "validation": count // 5}
            drawn = {
                "plain": split_rows(count, sizes, 3),
                "strata": split_strata(classes, sizes, 3),
                "groups": split_groups(groups, sizes, 3, "group")[0],
            }
            for kind, sets in drawn.items():
                for name, numbers in sets.items():
                    yield f"{kind} {name} of {count} rows, {percent} %", numbers
        for fold in (1, 3):
            yield f"fold {fold} of {count} rows", rows_of_fold(classes, False, 3, fold, 5, "class")
            of_groups = rows_of_fold(groups, True, 3, fold, 5, "group")
            yield f"fold {fold} of groups of {count} rows", of_groups


def digest(numbers: Iterable[int]) -> str:
    """Return a hash of the rows of a set."""
    return hashlib.sha256(repr(sorted(numbers)).encode()).hexdigest()
