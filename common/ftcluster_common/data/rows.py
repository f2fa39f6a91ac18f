"""Rows of data, the error for data that cannot be used, and helpers for messages about rows."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

SHOWN = 60  # maximum characters of a value in a message
SHOWN_PLACES = 5  # maximum number of rows that a message names

Row = Mapping[str, Any]


class DataError(ValueError):
    """A file or a row cannot be used; the message names the file, its line, and the reason."""


def short(value: Any) -> str:
    """Return a value shortened for a message, because a cell may hold a whole file."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def found_columns(columns: Iterable[Any]) -> str:
    """Return the names of the columns in one line, for a message.

    >>> print(found_columns(["id", "a\\nb"]), found_columns([]))
    found id, 'a\\nb' found none
    """
    names = map(str, columns)
    shown = [name if name.isprintable() else ascii(name) for name in names]
    return f"found {', '.join(shown) or 'none'}"


@dataclass
class Places:
    """A number of rows, and the places of the first of them."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, place: str) -> None:
        """Count a row."""
        self.count += 1
        if len(self.first) < SHOWN_PLACES:
            self.first.append(place.rpartition("/")[2])

    def __str__(self) -> str:
        """Return the places, separated by commas, for a message."""
        return ", ".join(self.first) + (", ..." if self.count > len(self.first) else "")
