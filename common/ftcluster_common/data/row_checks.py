"""Checks of rows that several tasks share. Standard library only."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ftcluster_common.data.data_files import DataError, Row, found_columns, short

CheckRow = Callable[[Row], str]  # returns the problem of a row, or ""


def check_by_reading(read: Callable[[Row], object]) -> CheckRow:
    """Return a check that calls `read` with a row, and reports the error that `read` raises."""
    return partial(_reading_problem, read)


def _reading_problem(read: Callable[[Row], object], row: Row) -> str:
    try:
        read(row)
    except DataError as error:
        return str(error)
    return ""


def check_columns(texts: Sequence[str], others: Sequence[str], row: Row) -> str:
    """Return "", or the problem: a missing column, or a column in `texts` that is not a string."""
    missing = [name for name in (*texts, *others) if name not in row]
    if missing:
        return f"no column {', '.join(missing)}; {found_columns(row)}"
    for name in texts:
        if not isinstance(row[name], str):
            return f"column {name} must be a string, got {short(row[name])}"
    return ""


def is_class(label: Any) -> bool:
    """Return True if a label is the name or the number of a class."""
    if isinstance(label, bool) or (isinstance(label, str) and label.strip()):
        return True  # the name of a class
    whole = isinstance(label, int) or (isinstance(label, float) and label.is_integer())
    return whole and label >= 0
