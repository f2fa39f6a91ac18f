"""Reads exports of Label Studio: JSON, JSON-MIN, CSV and TSV.

A JSON export is a list of tasks, each with its `data` and a list of `annotations` (before release
1.0, `completions`). Each result of an annotation contains the name of its control (`from_name`) and
a value whose form depends on the control. JSON-MIN, CSV and TSV contain one row for each
annotation, with a column for each field of `data` and for each control. In such a row, a choice of
one class is a string, and all other values are objects, which CSV and TSV contain as JSON.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from ftcluster_common.data.importers.record import (
    Annotated,
    Importer,
    are_objects,
    classes_of,
    located,
    span_of,
)
from ftcluster_common.data.rows import DataError, Row, short
from ftcluster_common.given_files import parse_json

SPAN_KINDS = ("labels", "hypertextlabels", "paragraphlabels")  # fields with an entity's labels
NUMBERS = ("rating", "number")
VALUES = (*SPAN_KINDS, *NUMBERS, "choices", "taxonomy", "text", "selected")
# columns that JSON-MIN and CSV add to the fields of `data` and the controls
ABOUT = ("annotator", "annotation_id", "created_at", "updated_at", "lead_time", "agreement",
         "was_cancelled")  # fmt: skip
CHOICE = "the annotation marked as ground truth is used, or else the oldest annotation"


def _annotations(row: Row) -> Any:
    return row.get("annotations", row.get("completions"))


def _is_task(row: Row) -> bool:
    return isinstance(row.get("data"), Mapping) and isinstance(_annotations(row), list)


def _read_task(row: Row) -> Annotated:
    data, every = row.get("data"), _annotations(row)
    if not isinstance(data, Mapping):
        raise DataError(f"data must be an object with the task's texts, got {short(data)}")
    if not isinstance(every, list) or not all(isinstance(item, Mapping) for item in every):
        raise DataError(f"annotations must be a list of objects, got {short(every)}")
    complete = [item for item in every if not item.get("was_cancelled") and not item.get("skipped")]
    complete.sort(
        key=lambda item: (not item.get("ground_truth"), str(item.get("created_at") or ""))
    )
    ignored: set[str] = set()
    places: set[str] = set()
    answers = [_answers(item, data, ignored, places) for item in complete]
    skipped = (
        "" if answers else "whose annotations were cancelled" if every else "without an annotation"
    )
    return Annotated(
        dict(data),
        answers,
        skipped,
        text_field=places.pop() if len(places) == 1 else "",
        ignored=frozenset(ignored),
    )


def _answers(annotation: Row, data: Row, ignored: set[str], places: set[str]) -> dict[str, Any]:
    """Return the answers of an annotation by control.

    Args:
        ignored: set to which the kinds of results that are not read are added.
        places: set to which the fields of `data` that entities refer to are added.

    Raises:
        DataError: a result is damaged.
    """
    results = annotation.get("result")
    if not isinstance(results, list):
        raise DataError(f"the result of an annotation must be a list, got {short(results)}")
    by_control: defaultdict[str, list[Any]] = defaultdict(list)
    for result in results:
        value = result.get("value") if isinstance(result, Mapping) else None
        if not isinstance(value, Mapping) or not isinstance(result.get("from_name"), str):
            kind = result.get("type") if isinstance(result, Mapping) else None
            if kind == "relation":
                ignored.add("relations")
                continue
            raise DataError(
                f"a result must contain the name of its control (from_name) and a value, got "
                f"{short(result)}"
            )
        kind = next((name for name in VALUES if name in value), str(result.get("type")))
        if kind in SPAN_KINDS:
            field = str(result.get("to_name"))
            span, field = _span(value, value[kind], data, field)
            places.add(field)
            by_control[result["from_name"]].append(span)
        elif {"start", "end"} <= value.keys() or kind not in VALUES:
            ignored.add(f"{kind} of single entities" if kind in VALUES else kind)
        else:
            by_control[result["from_name"]].append({kind: value[kind]})
    return {name: _joined(values, name) for name, values in by_control.items()}


def _span(value: Row, labels: Any, data: Row, wanted: str) -> tuple[dict[str, Any], str]:
    """Return an entity, and the field of `data` with its text.

    Args:
        wanted: name of the object that the control refers to, which often is the field's name.

    Raises:
        DataError: the entity is damaged, or does not have exactly one label.
    """
    if not isinstance(labels, list) or len(labels) != 1:
        raise DataError(f"an entity must have exactly one label, got {short(labels)}")
    place = value.get("globalOffsets", value)
    if not isinstance(place, Mapping):
        raise DataError(
            f"globalOffsets of an entity must contain start and end, got {short(place)}"
        )
    span = span_of(place.get("start"), place.get("end"), labels[0])
    texts = {name: text for name, text in data.items() if isinstance(text, str)}
    if wanted in texts:
        texts = {wanted: texts[wanted]}
    problem: DataError | None = None
    for name, text in texts.items():
        try:
            if span["start"] < span["end"] <= 2 * len(text):
                found = located(span, text, value.get("text"))
                if found["end"] <= len(text):
                    return found, name
        except DataError as error:
            problem = problem or error
    raise problem or DataError(
        f"the entity from {span['start']} to {span['end']} is outside the texts of the task"
    )


def _joined(values: Iterable[Mapping[str, Any]], column: str) -> Any:
    """Return the values of one control as entities, classes, a number or a string.

    Raises:
        DataError: the values have different forms.
    """
    values = list(values)
    if are_objects(values, ("start", "end", "label")):
        return values
    kinds = {kind for value in values for kind in value}
    if len(kinds) != 1:
        raise DataError(
            f"column {column} mixes values of several kinds: {', '.join(sorted(kinds))}"
        )
    [kind] = kinds
    cells = [value[kind] for value in values]
    if kind in NUMBERS:
        return cells[0]
    if kind == "text":
        texts = [text for cell in cells for text in (cell if isinstance(cell, list) else [cell])]
        return "\n".join(map(str, texts))
    listed = [item for cell in cells for item in (cell if isinstance(cell, list) else [cell])]
    if kind == "taxonomy":
        listed = ["/".join(map(str, path)) if isinstance(path, list) else path for path in listed]
    return classes_of(listed, column)


def _is_row(row: Row) -> bool:
    if "id" in row and {"annotation_id", "annotator"} <= row.keys():
        return True
    cells = row.values()
    return any(
        are_objects(cell, (kind,)) and are_objects(cell, ("start", "end"))
        for cell in cells
        for kind in SPAN_KINDS
    ) or any(isinstance(cell, Mapping) and [*cell] == ["choices"] for cell in cells)


def _read_row(row: Row) -> Annotated:
    fields: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for name, cell in row.items():
        if name not in ABOUT:
            value = _value(cell)
            (values if _is_answer(value) else fields)[name] = value
    answers: dict[str, Any] = {}
    places: set[str] = set()
    for name, value in values.items():
        if are_objects(value, ("start", "end")) or are_objects(value, ("globalOffsets",)):
            spans = []
            for item in value:
                kind = next((kind for kind in SPAN_KINDS if kind in item), "")
                if not kind:
                    raise DataError(
                        f"column {name} contains an entity without labels: {short(item)}"
                    )
                span, place = _span(item, item[kind], fields, "")
                spans.append(span)
                places.add(place)
            answers[name] = spans
        elif isinstance(value, list) and all(isinstance(item, str) for item in value):
            answers[name] = classes_of(value, name)
        else:
            answers[name] = _joined(value if isinstance(value, list) else [value], name)
    cancelled = str(row.get("was_cancelled")).lower() == "true"
    # a choice of one class is a string, like the texts of the task, so it may be in `fields`
    longest = max((cell for cell in fields.values() if isinstance(cell, str)), key=len, default="")
    return Annotated(
        fields,
        () if cancelled else (answers,),
        "whose annotations were cancelled" if cancelled else "",
        key=(str(row["id"]), longest) if {"id", *ABOUT[:2]} <= row.keys() else None,
        rank=str(row.get("created_at") or ""),
        text_field=places.pop() if len(places) == 1 else "",
    )


def _value(cell: Any) -> Any:
    """Return a cell, or the JSON document in a cell of CSV."""
    if not isinstance(cell, str) or cell[:1] not in ("[", "{"):
        return cell
    try:
        return parse_json(cell)
    except ValueError:
        return cell


def _is_answer(value: Any) -> bool:
    items = value if isinstance(value, list) else [value]
    if all(isinstance(item, str) for item in items):
        return isinstance(value, list)
    return all(isinstance(item, Mapping) and any(kind in item for kind in VALUES) for item in items)


LABEL_STUDIO = Importer("Label Studio (JSON)", _is_task, _read_task, CHOICE)
LABEL_STUDIO_ROWS = Importer(
    "Label Studio (JSON-MIN or CSV)", _is_row, _read_row, "the oldest annotation is used"
)
