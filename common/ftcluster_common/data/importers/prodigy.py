"""Reads exports of Prodigy (`db-out`): JSONL with named entities, spans, classes and choices.

Each row is a task with an `answer`. Entities are in `spans`; a class is in `label`, and the chosen
`options` of the choice interface are in `accept`.
"""

from collections.abc import Mapping
from typing import Any

from ftcluster_common.data.importers.record import (
    LABEL,
    SPANS,
    Annotated,
    Classes,
    Importer,
    classes_of,
    located,
    span_of,
    text_of,
)
from ftcluster_common.data.rows import DataError, Row, short

ANSWER, TASK = "answer", "_task_hash"
ACCEPT, REJECT, IGNORE = "accept", "reject", "ignore"
MARKS = ("_input_hash", TASK, "_view_id", "_session_id", "_annotator_id", SPANS, ACCEPT, "options")
# fields that are not copied: the answers, and settings of the interface
INTERFACE = (ANSWER, ACCEPT, LABEL, SPANS, "tokens", "options", "config", "meta", "versions",
             "relations", "html", "score", "priority", "view_id", "field_id")  # fmt: skip
PLAIN = {"text", LABEL, ANSWER, "meta", "score"}  # fields of a row without any of MARKS


def _matches(row: Row) -> bool:
    if row.get(ANSWER) not in (ACCEPT, REJECT, IGNORE) or "text" not in row:
        return False
    return any(name in row for name in MARKS) or {*row} <= PLAIN


def _read(row: Row) -> Annotated:
    answer = row.get(ANSWER)
    if answer not in (ACCEPT, REJECT, IGNORE):
        raise DataError(f"answer must be accept, reject or ignore, got {short(answer)}")
    text = text_of(row, "text")
    fields = {
        name: value
        for name, value in row.items()
        if name not in INTERFACE and not name.startswith("_")
    }
    if answer != ACCEPT:
        return Annotated(fields, skipped=f"with the answer {answer}")
    answers: dict[str, Any] = {}
    if SPANS in row:
        answers[SPANS] = [_span(item, text) for item in _list(row, SPANS)]
    if ACCEPT in row:
        answers[LABEL] = _chosen(_list(row, ACCEPT), row.get("options"))
    elif LABEL in row:
        answers[LABEL] = classes_of(row[LABEL], LABEL)
    return Annotated(
        fields,
        (answers,),
        key=(row[TASK], text) if isinstance(row.get(TASK), int) else None,
        text_field="text",
        ignored=frozenset(["relations"] if row.get("relations") else []),
    )


def _list(row: Row, column: str) -> list[Any]:
    cell = row[column]
    if not isinstance(cell, list):
        raise DataError(f"column {column} must be a list, got {short(cell)}")
    return cell


def _span(item: Any, text: str) -> dict[str, Any]:
    if not isinstance(item, Mapping):
        raise DataError(
            f"column {SPANS} must contain objects with start, end and label, got {short(item)}"
        )
    span = located(
        span_of(*(item.get(name) for name in ("start", "end", LABEL))), text, item.get("text")
    )
    if not span["start"] < span["end"] <= len(text):
        raise DataError(
            f"the entity from {span['start']} to {span['end']} is outside the text of {len(text)} "
            "characters"
        )
    return span


def _chosen(identifiers: list[Any], choices: Any) -> Classes:
    """Return the chosen classes.

    Prodigy names classes by the options' identifiers. If an identifier is a number, the option's
    text names the class.
    """
    texts = {
        option["id"]: str(option["text"])
        for option in (choices if isinstance(choices, list) else [])
        if isinstance(option, Mapping) and {"id", "text"} <= option.keys()
        and isinstance(option["id"], int)
    }  # fmt: skip
    names = classes_of(identifiers, ACCEPT) and [
        texts.get(identifier, identifier) for identifier in identifiers
    ]
    return classes_of(names, ACCEPT) if names else Classes()


PRODIGY = Importer("Prodigy", _matches, _read)
