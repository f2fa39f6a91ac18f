"""The common form into which each importer converts a row of an export. Standard library only."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ftcluster_common.data.rows import DataError, Row, short

LABEL, SPANS = "label", "spans"


class Classes(tuple[str, ...]):
    """The classes that an annotator chose for a text."""

    __slots__ = ()


@dataclass(frozen=True)
class Annotated:
    """A row of an export.

    Attributes:
        fields: texts and other data of the row, by column.
        answers: answers of each annotator, by column; the answers to train on come first. Chosen
            classes are a `Classes`, and entities are a list of objects with start, end and label.
        skipped: reason why the row has no answers to train on, or "".
        key: value that is equal for rows with annotations of the same text; None if a text has only
            one row.
        rank: rank of the row among the rows with the same key; the lowest rank is used.
        text_field: field that the entities' positions refer to; "" if unknown.
        ignored: kinds of annotations in the row that no task reads.
    """

    fields: Mapping[str, Any]
    answers: Sequence[Mapping[str, Any]] = ()
    skipped: str = ""
    key: Hashable = None
    rank: str = ""
    text_field: str = ""
    ignored: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True)
class Importer:
    """The reader of one format of one tool.

    Attributes:
        tool: name of the format in messages.
        matches: function that returns True if a row is in this format.
        read: function that reads a row. It raises DataError for a damaged row; the caller adds the
            row's place to the message.
        choice: message that says which of several annotations of a text is used.
    """

    tool: str
    matches: Callable[[Row], bool]
    read: Callable[[Row], Annotated]
    choice: str = "the first annotation in the file is used"


def text_of(row: Row, column: str) -> str:
    """Return the string in a column of a row.

    Raises:
        DataError: the column is missing or is not a string.
    """
    text = row.get(column)
    if not isinstance(text, str):
        problem = (
            f"column {column} must be a string, got {short(text)}"
            if column in row
            else f"no column {column}"
        )
        raise DataError(f"{problem}; only annotations of texts are supported")
    return text


def classes_of(names: Any, column: str) -> Classes:
    """Return the classes in a list of names, or in one name.

    Raises:
        DataError: a name is neither a string nor a number.
    """
    listed = names if isinstance(names, list) else [names]
    for name in listed:
        if isinstance(name, bool) or not isinstance(name, str | int | float):
            raise DataError(f"column {column} must contain names of classes, got {short(name)}")
    return Classes(dict.fromkeys(map(str, listed)))


def span_of(start: Any, end: Any, label: Any) -> dict[str, Any]:
    """Return an entity as an object with start, end and label.

    Raises:
        DataError: the positions are not whole numbers, or the label is not a string.
    """
    for name, place in (("start", start), ("end", end)):
        if isinstance(place, bool) or not isinstance(place, int) or place < 0:
            raise DataError(
                f"the {name} of an entity must be a character position (a whole number from 0), "
                f"got {short(place)}"
            )
    if not isinstance(label, str) or not label.strip():
        raise DataError(
            f"the label of the entity from {start} to {end} must be a name, got {short(label)}"
        )
    return {"start": start, "end": end, "label": label}


def located(span: Mapping[str, Any], text: str, copy: Any) -> dict[str, Any]:
    """Return an entity with positions at which the text equals the tool's copy of the entity.

    Browsers count characters outside the Basic Multilingual Plane, such as most emojis, as two. If
    the text equals the copy only at such positions, they are converted to Python's positions.

    Args:
        span: start, end and label of the entity.
        text: the whole text.
        copy: the entity's text according to the tool; None if the tool does not export it.

    Raises:
        DataError: the text at these positions differs from the copy.

    >>> located({"start": 3, "end": 6, "label": "PER"}, "\\U0001f600 Ada", "Ada")
    {'start': 2, 'end': 5, 'label': 'PER'}
    """
    plain = {name: span[name] for name in ("start", "end", "label")}
    if not isinstance(copy, str):
        return plain
    units = text.encode("utf-16-le", "surrogatepass")
    start, end = plain["start"], plain["end"]
    if _alike(text[start:end], copy):
        return plain
    before, part = units[: 2 * start], units[2 * start : 2 * end]
    try:
        converted = part.decode("utf-16-le")
        begin = len(before.decode("utf-16-le"))
    except UnicodeDecodeError:  # a position in the middle of a character
        converted, begin = "", 0
    if converted and _alike(converted, copy):
        return {**plain, "start": begin, "end": begin + len(converted)}
    raise DataError(
        f"the entity {short(copy)} is not at characters {start} to {end} of the text, which "
        f"contains {short(text[start:end])} there"
    )


def _alike(part: str, copy: str) -> bool:
    """Return True if texts are equal except for white space, which browsers change."""
    return part == copy or part.split() == copy.replace("\\n", "\n").split()


def is_triple(value: Any) -> bool:
    """Return True if a value is a list of two positions and a label."""
    return (
        isinstance(value, list)
        and len(value) == 3
        and all(isinstance(place, int) and not isinstance(place, bool) for place in value[:2])
        and isinstance(value[2], str)
    )


def are_objects(cell: Any, names: Iterable[str]) -> bool:
    """Return True if a cell is a non-empty list of objects with these fields."""
    wanted = {*names}
    return (
        isinstance(cell, list)
        and bool(cell)
        and all(isinstance(item, Mapping) and wanted <= item.keys() for item in cell)
    )
