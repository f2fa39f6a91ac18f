"""The form in which the module of a tool returns a row of its export. Standard library only."""

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
        answers: answers of each annotator, by column; the answers to train on come first. Classes
            are `Classes`, and entities are lists of objects with start, end and label.
        skipped: reason why the row has no answers to train on, or "".
        key: value that is equal for rows with annotations of the same text; None if a text has only
            one row.
        rank: rank of the row among the rows with the same key; the lowest rank is used.
        text_field: field that the entities' positions refer to, if it is known.
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
        choice: rule, for messages, that selects one of several annotations of a text.
    """

    tool: str
    matches: Callable[[Row], bool]
    read: Callable[[Row], Annotated]
    choice: str = "the first annotation in the file is used"


def text_of(row: Row, column: str) -> str:
    """Return the text of a column.

    Raises:
        DataError: the row has no text there.
    """
    text = row.get(column)
    if not isinstance(text, str):
        has = f"{column} is {short(text)}, not a text" if column in row else f"no column {column}"
        raise DataError(f"{has}; only annotations of texts are supported")
    return text


def classes_of(names: Any, column: str) -> Classes:
    """Return the classes in a list of names, or in one name.

    Raises:
        DataError: a name is not a text or a number.
    """
    listed = names if isinstance(names, list) else [names]
    for name in listed:
        if isinstance(name, bool) or not isinstance(name, str | int | float):
            raise DataError(f"{column} has {short(name)}, not the name of a class")
    return Classes(dict.fromkeys(map(str, listed)))


def span_of(start: Any, end: Any, label: Any) -> dict[str, Any]:
    """Return an entity of a text.

    Raises:
        DataError: the positions are not whole numbers, or the label is not a text.
    """
    for name, place in (("start", start), ("end", end)):
        if isinstance(place, bool) or not isinstance(place, int) or place < 0:
            raise DataError(
                f"an entity has the {name} {short(place)}, not a character position (a whole "
                "number from 0)"
            )
    if not isinstance(label, str) or not label.strip():
        raise DataError(
            f"the entity from {start} to {end} has the label {short(label)}, not a name"
        )
    return {"start": start, "end": end, "label": label}


def located(span: Mapping[str, Any], text: str, copy: Any) -> dict[str, Any]:
    """Return an entity whose positions fit the tool's copy of its text.

    Browsers count characters outside the Basic Multilingual Plane, such as most emojis, as two. If
    the copy fits such positions instead of Python's, the positions are converted.

    Args:
        span: start, end and label of the entity.
        text: the whole text.
        copy: the entity's text according to the tool; None if the tool does not export it.

    Raises:
        DataError: the text is different at these positions.

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
        f"the entity {short(copy)} is not at the characters {start} to {end} of the text, which "
        f"has {short(text[start:end])} there"
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
    """Return True if a cell is a list, not empty, of objects with these fields."""
    wanted = {*names}
    return (
        isinstance(cell, list)
        and bool(cell)
        and all(isinstance(item, Mapping) and wanted <= item.keys() for item in cell)
    )
