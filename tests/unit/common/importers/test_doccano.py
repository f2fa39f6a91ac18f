"""Exports of doccano, in the forms of its releases."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.common.importers.exports import notes, problems, read, write

TEXT = "Mary sees Bonn"
PERSON, CITY = {"start": 0, "end": 4, "label": "PER"}, {"start": 10, "end": 14, "label": "LOC"}


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ({"id": 3, "text": TEXT, "label": [[10, 14, "LOC"], [0, 4, "PER"]],
          "Comments": []}, "label"),
        ({"id": 3, "text": TEXT, "label": [[10, 14, "LOC"], [0, 4, "PER"]]}, "label"),
        ({"id": 3, "text": TEXT, "meta": {}, "annotation_approver": None,
          "labels": [[10, 14, "LOC"], [0, 4, "PER"]]}, "labels"),
        ({"id": 3, "data": TEXT, "label": [[10, 14, "LOC"], [0, 4, "PER"]]}, "label"),
        ({"id": 3, "text": TEXT, "Comments": [], "relations": [
            {"id": 1, "from_id": 8, "to_id": 9, "type": "sees"}], "entities": [
            {"id": 9, "label": "LOC", "start_offset": 10, "end_offset": 14},
            {"id": 8, "label": "PER", "start_offset": 0, "end_offset": 4}]}, "entities"),
        ({"text": TEXT, "annotations": [
            {"label": "LOC", "start_offset": 10, "end_offset": 14, "user": 1},
            {"label": "PER", "start_offset": 0, "end_offset": 4, "user": 1}]}, "annotations"),
    ],
)  # fmt: skip
def test_entities_of_each_release(tmp_path: Path, row: dict[str, Any], column: str) -> None:
    other = {**row, column: [], "relations": []} | ({"id": 4} if "id" in row else {})
    path = write(tmp_path / "all.jsonl", [row, other])
    first, second = read(path)
    assert first["text"] == TEXT
    assert first[column] == [CITY, PERSON]
    assert second[column] == []
    assert (
        "all.jsonl is an export of doccano: 2 of 2 rows are read; 1 of these have no entity"
        in notes(path)[0]
    )
    assert ("; not read: relations" in notes(path)[0]) == bool(row.get("relations"))


@pytest.mark.parametrize("ending", ["jsonl", "json"])
def test_a_list_of_one_class_in_each_row_is_the_class(tmp_path: Path, ending: str) -> None:
    """The text that nobody has labelled is skipped, and not learned as a class of its own."""
    labels = [["good"], ["bad"], [], ["good"]]
    rows = [{"id": n, "text": f"text {n}", "label": label, "Comments": []}
            for n, label in enumerate(labels)]  # fmt: skip
    path = write(tmp_path / f"admin.{ending}", rows)
    assert [row["label"] for row in read(path)] == ["good", "bad", "good"]
    place = "admin.jsonl:3" if ending == "jsonl" else "admin.json: row 3"
    assert notes(path)[0] == (
        f"admin.{ending} is an export of doccano: 3 of 4 rows are read; skipped: 1 without a class "
        f"({place}); label contains one class in each row"
    )


def test_several_classes_of_a_text_make_lists(tmp_path: Path) -> None:
    labels = [["good", "new"], ["bad"], []]
    rows = [{"id": n, "text": f"text {n}", "label": label, "Comments": []}
            for n, label in enumerate(labels)]  # fmt: skip
    assert [row["label"] for row in read(write(tmp_path / "a.jsonl", rows))] == labels
    cells = [{**row, "label": "#".join(row["label"]), "Comments": ""} for row in rows]
    assert [row["label"] for row in read(write(tmp_path / "a.csv", cells))] == labels


def test_intents_and_slots_are_a_class_and_entities(tmp_path: Path) -> None:
    row = {"id": 1, "text": TEXT, "cats": ["visit"], "entities": [[0, 4, "PER"]], "Comments": []}
    [read_row] = read(write(tmp_path / "a.jsonl", [row]))
    assert (read_row["label"], read_row["entities"]) == ("visit", [PERSON])


def test_files_of_two_annotators(tmp_path: Path) -> None:
    """A project without collaboration is exported as one file for each annotator."""
    rows = [{"id": n, "text": f"text {n}", "label": ["good"], "Comments": []} for n in range(3)]
    ada = write(tmp_path / "ada.jsonl", rows[:2])
    bob = write(tmp_path / "bob.jsonl", [rows[0], {**rows[1], "label": ["bad"]}, rows[2]])
    assert [(row["id"], row["label"]) for row in read(ada, bob)] == [
        (0, "good"), (1, "good"), (2, "good")
    ]  # fmt: skip
    first, second, _ = notes(ada, bob)
    assert "3 of 5 rows are read; skipped: 2 that annotate the text of another row" in first
    assert "(bob.jsonl:1, bob.jsonl:2)" in first
    assert second.startswith("train: annotators DISAGREE about 1 of the texts (bob.jsonl:2): ")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"label": [[0, 99, "PER"]]}, "the entity from 0 to 99 is outside the text of 14"),
        ({"label": [[4, 4, "PER"]]}, "the entity from 4 to 4 is outside the text"),
        ({"label": [[0, "4", "PER"]]}, "a start, an end and a label, got [0, '4', 'PER']"),
        ({"label": [[0, 4, " "]]}, "must be a name, got ' '"),
        ({"label": {"a": 1}}, "column label must be a list of labels, got {'a': 1}"),
        ({"label": [{"label": 7, "start_offset": 0, "end_offset": 4}]},
         "the label 7 is a number from doccano's database"),
        ({"text": None}, "no column text or data; only annotations of texts are supported"),
    ],
)  # fmt: skip
def test_a_damaged_row_is_refused_with_file_row_and_reason(
    tmp_path: Path, change: dict[str, Any], problem: str
) -> None:
    good = {"id": 1, "text": TEXT, "label": [[0, 4, "PER"]], "Comments": []}
    path = write(tmp_path / "a.jsonl", [good, {**good, "id": 2, **change}, {**good, "id": 3}])
    [message] = problems(path)
    assert message.startswith("a.jsonl:2: doccano: ")
    assert problem in message


def test_rows_of_other_programs_stay_as_they_are(tmp_path: Path) -> None:
    rows = [
        {"text": "so", "label": ["a", "b"]},
        {"id": 7, "text": "so", "label": "a"},
        {"id": 8, "text": "so", "label": ["a"]},
        {"text": TEXT, "spans": [PERSON]},
    ]
    for row in rows:
        path = write(tmp_path / "a.jsonl", [row])
        assert read(path) == [row]
        assert notes(path) == []
