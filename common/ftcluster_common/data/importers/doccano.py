"""Reads exports of doccano: JSONL, JSON and CSV with classes, labeled sequences and relations.

The forms follow doccano's `data_export/pipeline` and its releases since 1.0:

- classification: `text` and a list `label` of classes; in CSV `#` separates the classes;
- sequence labeling: `text` and a list `label` of triples (start, end, label);
- with relations: `entities` with start_offset and end_offset, and `relations`;
- intent detection: classes in `cats`, and triples in `entities`;
- old releases: `labels` instead of `label`, `data` instead of `text`, and `annotations` with
  label numbers.
"""

from collections.abc import Mapping
from typing import Any

from ftcluster_common.data.importers.record import (
    Annotated,
    Classes,
    Importer,
    are_objects,
    classes_of,
    is_triple,
    span_of,
)
from ftcluster_common.data.rows import DataError, Row, short

TEXTS = ("text", "data")
ANSWERS = ("label", "labels", "entities", "cats", "annotations")
OFFSETS = ("start_offset", "end_offset")
COMMENTS, APPROVER = "Comments", "annotation_approver"
# columns that are not copied: text, annotations, and doccano's own data
OTHERS = (*TEXTS, *ANSWERS, COMMENTS, APPROVER, "relations", "meta", "annotation_approver")


def _text_column(row: Row) -> str:
    return next((name for name in TEXTS if isinstance(row.get(name), str)), "")


def _matches(row: Row) -> bool:
    answers = [name for name in ANSWERS if name in row]
    if not _text_column(row) or not answers:
        return False
    if COMMENTS in row or APPROVER in row or {"entities", "relations"} <= row.keys():
        return True
    cells = [row[name] for name in answers]
    triples = "id" in row and any(
        isinstance(cell, list) and any(map(is_triple, cell)) for cell in cells
    )
    return triples or any(are_objects(cell, OFFSETS) for cell in cells)


def _read(row: Row) -> Annotated:
    column = _text_column(row)
    if not column:
        raise DataError("no column text or data; only annotations of texts are supported")
    text = row[column]
    answers = {name: _answer(name, row[name], text) for name in ANSWERS if name in row}
    if not answers:
        raise DataError(f"no annotations; doccano writes them into one of {', '.join(ANSWERS)}")
    meta = row.get("meta")
    others = {name: value for name, value in row.items() if name not in OTHERS}
    fields = {**(meta if isinstance(meta, Mapping) else {}), **others, "text": text}
    return Annotated(
        fields,
        (answers,),
        key=(str(row["id"]), text) if "id" in row else None,
        text_field="text",
        ignored=frozenset(["relations"] if row.get("relations") else []),
    )


def _answer(column: str, cell: Any, text: str) -> Any:
    """Return the classes or the entities in a cell; [] if it contains neither.

    Raises:
        DataError: the cell has an unsupported form.
    """
    if isinstance(cell, str):  # CSV
        return Classes(name for name in cell.split("#") if name.strip())
    if not isinstance(cell, list):
        raise DataError(f"column {column} must be a list of labels, got {short(cell)}")
    if all(isinstance(item, str) for item in cell):
        return classes_of(cell, column) if cell else []
    return [_span(item, len(text)) for item in cell]


def _span(item: Any, length: int) -> dict[str, Any]:
    if is_triple(item):
        start, end, label = item
    elif isinstance(item, Mapping) and {*OFFSETS, "label"} <= item.keys():
        start, end, label = (item[name] for name in (*OFFSETS, "label"))
        if isinstance(label, int):
            raise DataError(
                f"the label {short(label)} is a number from doccano's database, not a name: export "
                "the project as JSONL with text labels"
            )
    else:
        raise DataError(f"an entity must have a start, an end and a label, got {short(item)}")
    span = span_of(start, end, label)
    if not start < end <= length:
        raise DataError(
            f"the entity from {start} to {end} is outside the text of {length} characters"
        )
    return span


DOCCANO = Importer("doccano", _matches, _read)
