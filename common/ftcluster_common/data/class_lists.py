"""Splits cells with several classes: a list written as a string, or names with a separator.

Standard library only.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, Literal

from ftcluster_common.data.cells import read_cell
from ftcluster_common.data.numbers import has_comma

Separator = Literal["comma", "semicolon", "pipe", "hash", "list", "none"]
MARKS: Mapping[str, str] = {"pipe": "|", "semicolon": ";", "comma": ",", "hash": "#"}
FIRST_CELLS = 1000  # after so many cells without a separator, the search ends
MOST_NAMES = 100_000  # maximum distinct cells; a column with more does not contain classes
LEAST_ROWS = 2  # minimum number of rows with several classes; a single row may be a mistake
LEAST_SHARE = 0.05  # minimum share of labelled rows that have several classes
LEAST_RECURRING = 0.5  # minimum share of names that also occur in another cell


def split_classes(cell: Any, separator: Separator | None) -> Any:
    """Return the classes in a string or an empty cell as a list; return other cells unchanged.

    >>> split_classes("a | b", "pipe"), split_classes("", "pipe"), split_classes("a|b", "none")
    (['a', 'b'], [], 'a|b')
    >>> split_classes("['a']", "list"), split_classes(["a"], "comma"), split_classes(None, "comma")
    (['a'], ['a'], [])
    """
    if separator in (None, "none") or isinstance(cell, list):
        return cell
    if cell is None or cell != cell:  # NaN
        return []
    if not isinstance(cell, str):
        return cell
    if not cell.strip():
        return []
    if separator == "list":
        return read_cell(cell)
    return _parts(cell, MARKS[str(separator)])


def _parts(cell: str, mark: str) -> list[str]:
    return [part.strip() for part in cell.split(mark) if part.strip()]


def find_separator(cells: Iterable[Any]) -> Separator:
    """Return the separator between the classes in a column of labels.

    A mark counts as a separator if enough rows contain it, and if most of the names between the
    marks also occur in other cells: "toys, games" alone may be the name of one class. Lists that
    are written as strings need no such evidence.

    >>> find_separator(["a", "a, b", "b", "b, a"]), find_separator(["toys, games", "art, music"])
    ('comma', 'none')
    >>> find_separator(["['a', 'b']", "[]"]), find_separator(["[SEP]", "[CLS]"])
    ('list', 'none')
    """
    counts: Counter[str] = Counter()
    rows = iter(cells)
    marked = are_lists = False
    for number, cell in enumerate(rows):
        if cell is None or cell != cell or (isinstance(cell, str) and not cell.strip()):
            continue
        if not isinstance(cell, str):
            return "none"
        are_lists = _is_list(cell) and (are_lists or not counts)
        counts[cell.strip()] += 1
        marked = marked or any(mark in cell for mark in (*MARKS.values(), "["))
        if (number >= FIRST_CELLS and not marked) or len(counts) > MOST_NAMES:
            return "none"
    if are_lists:
        return "list"
    for name, mark in MARKS.items():
        if _separates(mark, counts):
            return name  # type: ignore[return-value]
    return "none"


def _is_list(cell: str) -> bool:
    value = read_cell(cell)
    return isinstance(value, list) and all(isinstance(item, str | int) for item in value)


def _separates(mark: str, counts: Counter[str]) -> bool:
    """Return True if a mark separates classes. `find_separator` describes the rule."""
    parts = {cell: [part.strip() for part in cell.split(mark)] for cell in counts}
    several = {
        cell: names
        for cell, names in parts.items()
        if len(names) > 1
        and all(names)
        and not (mark == "," and has_comma(cell) and not {*names} <= counts.keys())
    }
    rows = sum(counts[cell] for cell in several)
    if rows < max(LEAST_ROWS, LEAST_SHARE * counts.total()):
        return False
    uses = Counter(chain.from_iterable({*names} for names in parts.values()))
    names = {name for some in several.values() for name in some}
    recurring = {name for name in names if uses[name] > 1}
    return len(recurring) >= LEAST_RECURRING * len(names) and all(
        recurring.intersection(some) for some in several.values()
    )


def separator_note(column: str, separator: Separator) -> str:
    """Return the note that several classes were recognized in the cells of a column."""
    form = "as a list" if separator == "list" else f"separated by {MARKS[separator]}"
    return (
        f"the cells of column {column} contain several classes {form} "
        f"(label_separator={separator}); to treat each cell as one class, set label_separator=none"
    )
