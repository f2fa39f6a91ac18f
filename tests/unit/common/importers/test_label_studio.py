"""Exports of Label Studio: JSON, JSON-MIN and CSV of the same projects."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftcluster_common.data.importers.record import located
from ftcluster_common.data.rows import DataError
from tests.unit.common.importers.exports import Rows, notes, problems, read, write

TEXT = "Mary sees Bonn"
CITY = {"start": 10, "end": 14, "label": "LOC"}


def result(kind: str, value: dict[str, Any], name: str = "label") -> dict[str, Any]:
    return {"id": "Ab3", "from_name": name, "to_name": "text", "type": kind, "origin": "manual",
            "value": value}  # fmt: skip


def span(start: int, end: int, label: str, text: str | None = None) -> dict[str, Any]:
    return result("labels", {"start": start, "end": end, "labels": [label],
                             "text": TEXT[start:end] if text is None else text})  # fmt: skip


def annotation(*results: Any, **about: Any) -> dict[str, Any]:
    return {"id": 1, "completed_by": 3, "result": [*results], "was_cancelled": False,
            "ground_truth": False, "created_at": "2026-03-01T10:00:00Z", "lead_time": 4.2,
            **about}  # fmt: skip


def task(number: int, *annotations: Any, **data: Any) -> dict[str, Any]:
    return {"id": number, "annotations": [*annotations], "drafts": [], "predictions": [],
            "file_upload": "a.csv", "data": data or {"text": TEXT}, "meta": {},
            "project": 4}  # fmt: skip


def minimal(number: int, **columns: Any) -> dict[str, Any]:
    return {"text": TEXT, "id": number, "annotator": 1, "annotation_id": number,
            "created_at": "2026-03-01T10:00:00Z", "updated_at": "2026-03-01T10:00:00Z",
            "lead_time": 4.2, **columns}  # fmt: skip


def as_csv(rows: Rows) -> Rows:
    """Lists and objects are JSON in a cell."""
    return [
        {name: json.dumps(cell) if isinstance(cell, list | dict) else cell
         for name, cell in row.items()}
        for row in rows
    ]  # fmt: skip


def test_entities_of_all_three_formats_are_equal(tmp_path: Path) -> None:
    tasks = [task(1, annotation(span(10, 14, "LOC"))), task(2, annotation())]
    values = [[{"start": 10, "end": 14, "text": "Bonn", "labels": ["LOC"]}], []]
    rows = [minimal(n, label=value) for n, value in enumerate(values, 1)]
    del rows[1]["label"]  # an annotation without entities has no such column
    for path in (
        write(tmp_path / "full.json", tasks),
        write(tmp_path / "min.json", rows),
        write(tmp_path / "rows.csv", as_csv(rows)),
    ):
        assert [row["label"] for row in read(path)] == [[CITY], []], path.name
        assert {row["text"] for row in read(path)} == {TEXT}
        assert "is an export of Label Studio (JSON" in notes(path)[0]
        assert "2 of 2 rows are read; 1 of these have no entity" in notes(path)[0]


def test_choices_of_all_three_formats_are_equal(tmp_path: Path) -> None:
    chosen = [["good"], ["good", "new"], ["bad"]]
    tasks = [
        task(n, annotation(result("choices", {"choices": names}, "topic")))
        for n, names in enumerate(chosen)
    ]
    rows = [
        minimal(n, topic=names[0] if len(names) == 1 else {"choices": names})
        for n, names in enumerate(chosen)
    ]
    for path in (
        write(tmp_path / "full.json", tasks),
        write(tmp_path / "min.json", rows),
        write(tmp_path / "rows.csv", as_csv(rows)),
    ):
        assert [row["topic"] for row in read(path)] == chosen, path.name


def test_a_single_choice_is_a_class_also_under_an_unusual_name(tmp_path: Path) -> None:
    tasks = [
        task(n, annotation(result("choices", {"choices": [name]}, "chosen_one")),
             body="A text of words.", label="from an older project")
        for n, name in enumerate(("good", "bad"))
    ]  # fmt: skip
    tasks.append(task(3, annotation(), body="Nobody chose."))
    path = write(tmp_path / "full.json", tasks)
    assert [(row["chosen_one"], row["label"]) for row in read(path)] == [
        ("good", "good"), ("bad", "bad")
    ]  # fmt: skip
    assert "label is a copy of chosen_one" in notes(path)[0]
    assert "skipped: 1 without a class (full.json: row 3)" in notes(path)[0]


def test_which_of_several_annotations_is_used(tmp_path: Path) -> None:
    """The annotation that is ground truth, or else the first one; cancelled ones never count."""

    def of(label: str, day: int, **about: Any) -> dict[str, Any]:
        chosen = result("choices", {"choices": [label]})
        return annotation(chosen, created_at=f"2026-03-{day:02}T10:00:00Z", **about)

    tasks = [
        task(1, of("late", 9), of("early", 2)),
        task(2, of("early", 2), of("late", 9, ground_truth=True)),
        task(3, of("gone", 1, was_cancelled=True), of("early", 2)),
        task(4, of("gone", 1, was_cancelled=True)),
        task(5),
        task(6, of("early", 2), of("early", 9)),
    ]
    path = write(tmp_path / "full.json", tasks)
    assert [row["label"] for row in read(path)] == ["early", "late", "early", "early"]
    first, second, _ = notes(path)
    assert "skipped: 1 whose annotations were cancelled (full.json: row 4)" in first
    assert "skipped: 1 without an annotation (full.json: row 5)" in first
    assert second.startswith(
        "full.json: annotators DISAGREE about 2 of the texts (full.json: row 1, full"
    )
    assert "ground truth is used, or else the oldest annotation" in second
    # to predict, each task has a row
    assert len(read(path, labelled=False)) == 6
    # in JSON-MIN, the newest annotation of a task comes first
    rows = [
        minimal(n, label=label, created_at=f"2026-03-{day:02}T10:00:00Z", annotation_id=day)
        for n, label, day in ((1, "late", 9), (1, "early", 2), (2, "late", 9))
    ]
    for path in (write(tmp_path / "min.json", rows), write(tmp_path / "rows.csv", rows)):
        assert [row["label"] for row in read(path)] == ["early", "late"]
        assert "annotators DISAGREE about 1 of the texts" in notes(path)[1]


def test_results_of_other_controls(tmp_path: Path) -> None:
    relation = {"type": "relation", "from_id": "a", "to_id": "b", "direction": "right"}
    box = result("rectanglelabels", {"x": 1, "y": 2, "rectanglelabels": ["car"]})
    of_region = result("choices", {"start": 0, "end": 4, "choices": ["sure"]}, "certainty")
    done = annotation(
        span(10, 14, "LOC"), relation, box, of_region,
        result("rating", {"rating": 4}, "stars"),
        result("textarea", {"text": ["two", "lines"]}, "summary"),
        result("taxonomy", {"taxonomy": [["food", "soup"], ["drink"]]}, "kinds"),
    )  # fmt: skip
    path = write(tmp_path / "full.json", [task(1, done)])
    [row] = read(path)
    assert row["spans"] == [CITY]  # `label` would be taken for a class
    assert (row["stars"], row["summary"]) == (4, "two\nlines")
    assert row["kinds"] == ["food/soup", "drink"]
    assert "not read: choices of single entities, rectanglelabels, relations" in notes(path)[0]


def test_the_field_of_the_entities_is_the_text(tmp_path: Path) -> None:
    """A template for questions: the answer is marked in the passage."""
    data = {"question": "What does Mary see?", "passage": f"Look: {TEXT}."}
    marked = span(16, 20, "Answer", "Bonn")
    [row] = read(write(tmp_path / "full.json", [task(1, annotation(marked), **data)]))
    assert row["text"] == data["passage"]
    assert row["label"] == [{"start": 16, "end": 20, "label": "Answer"}]


def test_completions_of_old_releases(tmp_path: Path) -> None:
    old = task(1, annotation(span(10, 14, "LOC")))
    old["completions"] = [{"result": [], "skipped": True}, *old.pop("annotations")]
    [row] = read(write(tmp_path / "full.json", [old]))
    assert row["label"] == [CITY]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"data": "text"}, "data must be an object with the task's texts, got 'text'"),
        ({"annotations": {}}, "annotations must be a list of objects, got {}"),
        ({"annotations": [annotation(span(10, 14, "LOC", "Rome"))]}, "the entity 'Rome' is not at"),
        ({"annotations": [annotation(span(10, 99, "LOC"))]}, "outside the texts of the task"),
        ({"annotations": [annotation(result("labels", {"start": 1, "end": 4, "labels": []}))]},
         "must have exactly one label, got []"),
        ({"annotations": [annotation({"id": "a", "type": "labels"})]}, "contain the name of its"),
        ({"annotations": [{"id": 4}]}, "the result of an annotation must be a list, got None"),
    ],
)  # fmt: skip
def test_a_damaged_task_is_refused_with_file_row_and_reason(
    tmp_path: Path, change: dict[str, Any], problem: str
) -> None:
    good = task(1, annotation(span(10, 14, "LOC")))
    path = write(tmp_path / "full.json", [good, {**good, **change}, good])
    [message] = problems(path)
    assert message.startswith("full.json: row 2: Label Studio (JSON): ")
    assert problem in message


def test_a_cell_of_csv_that_is_cut_is_refused(tmp_path: Path) -> None:
    value = json.dumps([{"start": 10, "end": 14, "text": "Bonn", "labels": ["LOC"]}])
    rows = [minimal(1, label=value), minimal(2, label=value[:20])]
    [message] = problems(write(tmp_path / "a.csv", rows))
    assert message.startswith("a.csv:3: Label Studio (JSON-MIN or CSV): column label is ")
    assert "contains entities in other rows" in message


LETTERS = st.text(st.sampled_from("ab é\u4e2d\U0001f600\U0001d11e\n"), min_size=1, max_size=20)


@given(LETTERS, st.data())
def test_positions_of_browsers_and_of_python_mark_the_same_text(text: str, data: Any) -> None:
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    part = text[start:end]
    if not part.strip():
        return  # an entity of white space could be anywhere
    wanted = {"start": start, "end": end, "label": "X"}
    assert located(wanted, text, part) == wanted
    units = [len(text[:place].encode("utf-16-le")) // 2 for place in (start, end)]
    found = located({"start": units[0], "end": units[1], "label": "X"}, text, part)
    assert text[found["start"] : found["end"]].split() == part.split()


@given(LETTERS, st.integers(0, 30), st.integers(0, 30), LETTERS)
def test_an_entity_is_located_where_its_copy_is_or_refused(
    text: str, start: int, end: int, copy: str
) -> None:
    try:
        found = located({"start": start, "end": end, "label": "X"}, text, copy)
    except DataError:
        return
    assert text[found["start"] : found["end"]].split() == copy.split()
