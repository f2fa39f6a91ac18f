"""Reads exports of Argilla 1 and Argilla 2.

- Argilla 2: a record contains `fields`, and `responses` by question. The responses to a question
  are a list of objects with a value, the user and, in some releases, a status. Flattened records
  have columns such as `label.responses`, `label.responses.users` and `label.responses.status`.
- Feedback data sets of Argilla 1: `responses` is a list with the values of each user. In a Hugging
  Face data set, each question is a column with objects of user_id, value and status.
- Older data sets of Argilla 1: a record contains `text` or `inputs`, and `annotation`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ftcluster_common.data.importers.record import (
    LABEL,
    SPANS,
    Annotated,
    Classes,
    Importer,
    are_objects,
    classes_of,
    located,
    span_of,
)
from ftcluster_common.data.rows import DataError, Row, short

SUBMITTED = ("submitted", None)  # early releases of Argilla 2 exported no status
RESPONSES, STATUS, USERS = ".responses", ".responses.status", ".responses.users"
OLD = ("annotation", "prediction")
OLD_MARKS = ("annotation_agent", "prediction_agent", "multi_label", "event_timestamp",
             "explanation", "status")  # fmt: skip
# fields of records that are not part of the annotated text
ABOUT = ("id", "external_id", "status", "metadata", "vectors", "_server_id", "suggestions",
         "fields", "responses", "inserted_at", "updated_at")  # fmt: skip
UNANSWERED = "without a submitted response"

Response = tuple[str, str, Any]  # user, question, value


def _is_record(row: Row) -> bool:
    return (
        isinstance(row.get("fields"), Mapping)
        and isinstance(row.get("responses", []), list | Mapping | None)
        and ("responses" in row or "suggestions" in row)
    )


def _read_record(row: Row) -> Annotated:
    fields, responses = row.get("fields"), row.get("responses")
    if not isinstance(fields, Mapping):
        raise DataError(f"fields must be an object with the record's texts, got {short(fields)}")
    if isinstance(responses, Mapping):
        found = [*_by_question(responses)]
    elif isinstance(responses, list | None):
        found = [*_by_user(responses or [])]
    else:
        raise DataError(f"responses must be a list or an object, got {short(responses)}")
    return _annotated(dict(fields), found)


def _by_question(responses: Row) -> Iterator[Response]:
    """Yield the submitted responses of Argilla 2."""
    for question, given in responses.items():
        if not isinstance(given, list) or not all(
            isinstance(item, Mapping) and "value" in item for item in given
        ):
            raise DataError(
                f"the responses to {question} must be a list of objects with a value, got "
                f"{short(given)}"
            )
        for item in given:
            if item.get("status") in SUBMITTED:
                yield str(item.get("user_id")), question, item["value"]


def _by_user(responses: Any) -> Iterator[Response]:
    """Yield the submitted responses of Argilla 1."""
    for response in responses:
        values = response.get("values") if isinstance(response, Mapping) else None
        if not isinstance(values, Mapping | None) or not isinstance(response, Mapping):
            raise DataError(
                f"a response must be an object with the values of its questions, got "
                f"{short(response)}"
            )
        if response.get("status") not in SUBMITTED:
            continue
        for question, value in (values or {}).items():
            plain = value["value"] if isinstance(value, Mapping) and "value" in value else value
            yield str(response.get("user_id")), question, plain


def _annotated(fields: dict[str, Any], responses: list[Response]) -> Annotated:
    """Return a record with the answers of each user."""
    by_user: dict[str, dict[str, Any]] = {}
    places: set[str] = set()
    ignored: set[str] = set()
    for user, question, value in responses:
        if value is None:
            continue
        if are_objects(value, ("rank", "value")):
            ignored.add("rankings")
            continue
        by_user.setdefault(user, {})[question] = _answer(question, value, fields, places)
    return Annotated(
        fields,
        [*by_user.values()],
        "" if by_user else UNANSWERED,
        text_field=places.pop() if len(places) == 1 else "",
        ignored=frozenset(ignored),
    )


def _answer(question: str, value: Any, fields: Row, places: set[str]) -> Any:
    """Return an answer as a string, a number, classes or entities.

    Args:
        places: set to which the names of the fields that entities refer to are added.

    Raises:
        DataError: the value has an unsupported form.
    """
    if isinstance(value, Mapping) and {"start", "end", "label"} <= value.keys():
        columns = [value[name] for name in ("start", "end", "label")]  # datasets stores lists
        if not all(isinstance(column, list) for column in columns):
            raise DataError(
                f"the response to {question} must contain lists of start, end and label, got "
                f"{short(value)}"
            )
        texts = value.get("text") or [None] * len(columns[0])
        value = [
            dict(zip(("start", "end", "label", "text"), item, strict=False))
            for item in zip(*columns, texts, strict=False)
        ]
    if isinstance(value, bool) or not isinstance(value, str | int | float | list):
        raise DataError(
            f"the response to {question} must be a string, a number or a list, got {short(value)}"
        )
    if not isinstance(value, list):
        return value
    if are_objects(value, ("start", "end", "label")):
        spans = []
        for item in value:
            span, place = _span(item, fields)
            spans.append(span)
            places.add(place)
        return spans
    return classes_of(value, question) if value else []


def _span(item: Row, fields: Row) -> tuple[dict[str, Any], str]:
    """Return an entity and the field with its text."""
    span = span_of(item["start"], item["end"], item["label"])
    problem: DataError | None = None
    for name, text in fields.items():
        if isinstance(text, str):
            try:
                found = located(span, text, item.get("text"))
            except DataError as error:
                problem = problem or error
                continue
            if found["start"] < found["end"] <= len(text):
                return found, name
    raise problem or DataError(
        f"the entity from {span['start']} to {span['end']} is outside the texts of the record"
    )


def _question_columns(row: Row) -> list[str]:
    """Return the questions of a flattened record of Argilla 2."""
    return [name.removesuffix(RESPONSES) for name in row if name.endswith(RESPONSES)]


def _is_flat(row: Row) -> bool:
    return any(
        f"{name}{USERS}" in row or f"{name}{STATUS}" in row for name in _question_columns(row)
    )


def _read_flat(row: Row) -> Annotated:
    questions = _question_columns(row)
    found: list[Response] = []
    for question in questions:
        values = row[f"{question}{RESPONSES}"] or []
        statuses = row.get(f"{question}{STATUS}") or [None] * len(values)
        users = row.get(f"{question}{USERS}") or [*range(len(values))]
        if not all(
            isinstance(cell, list) and len(cell) == len(values)
            for cell in (values, statuses, users)
        ):
            raise DataError(
                f"the responses, users and statuses of {question} must be lists of the same length"
            )
        found += [
            (str(user), question, value)
            for value, status, user in zip(values, statuses, users, strict=True)
            if status in SUBMITTED
        ]
    others = {
        name: value
        for name, value in row.items()
        if name not in ABOUT and ".responses" not in name and ".suggestion" not in name
    }
    return _annotated(others, found)


def _is_table(row: Row) -> bool:
    """Return True if Argilla 1 exported a row for the library `datasets`."""
    return any(name.endswith("-suggestion") and _is_question(row, name) for name in row)


def _is_question(row: Row, suggestion: str) -> bool:
    return isinstance(row.get(suggestion.removesuffix("-suggestion"), ""), list | None)


def _read_table(row: Row) -> Annotated:
    questions = [
        name.removesuffix("-suggestion")
        for name in row
        if name.endswith("-suggestion") and _is_question(row, name)
    ]
    responses = {name: row[name] or [] for name in questions if name in row}
    fields = {
        name: value
        for name, value in row.items()
        if name not in (*ABOUT, *questions) and "-suggestion" not in name
    }
    return _annotated(fields, [*_by_question(responses)])


def _is_old(row: Row) -> bool:
    return (
        {*OLD} <= row.keys()
        and ("text" in row or "inputs" in row)
        and any(name in row for name in OLD_MARKS)
    )


def _read_old(row: Row) -> Annotated:
    inputs = row.get("inputs")
    fields = dict(inputs) if isinstance(inputs, Mapping) else {}
    if isinstance(row.get("text"), str):
        fields["text"] = row["text"]
    if not any(isinstance(text, str) for text in fields.values()):
        raise DataError(f"column text must be a string, got {short(row.get('text'))}")
    annotation, status = row.get("annotation"), str(row.get("status"))
    if annotation is None or status.lower().endswith("discarded"):
        return Annotated(
            fields, skipped="that were discarded" if annotation else "without an annotation"
        )
    if "tokens" in row:
        return Annotated(fields, ({SPANS: _old_spans(annotation, fields)},), text_field="text")
    # suggestions for text generation are objects with a text; for classification they are labels
    writes = are_objects(row.get("prediction"), ("text",)) or (
        "multi_label" not in row and "inputs" not in row
    )
    if isinstance(annotation, str):
        answer: Any = annotation if writes else Classes([annotation])
    else:
        answer = classes_of(annotation, "annotation") if annotation else []
    return Annotated(fields, ({"target" if writes else LABEL: answer},))


def _old_spans(annotation: Any, fields: Row) -> list[dict[str, Any]]:
    """Return entities, which may be exported as objects or as lists of label, start and end."""
    if not isinstance(annotation, list):
        raise DataError(f"annotation must be a list of entities, got {short(annotation)}")
    spans = []
    for item in annotation:
        if isinstance(item, list) and len(item) >= 3:
            item = dict(zip((LABEL, "start", "end"), item[:3], strict=True))
        if not isinstance(item, Mapping) or not {"start", "end", LABEL} <= item.keys():
            raise DataError(
                f"an entity in annotation must have label, start and end, got {short(item)}"
            )
        spans.append(_span(item, fields)[0])
    return spans


CHOICE = "the first submitted response is used"
ARGILLA = (
    Importer("Argilla (records)", _is_record, _read_record, CHOICE),
    Importer("Argilla 2 (flattened records)", _is_flat, _read_flat, CHOICE),
    Importer("Argilla 1 (Hugging Face data set)", _is_table, _read_table, CHOICE),
    Importer("Argilla 1 (annotation and prediction)", _is_old, _read_old, CHOICE),
)
