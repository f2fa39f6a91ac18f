"""Exports of Prodigy: entities, classes and choices, with the annotators' answers."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.common.importers.exports import Rows, notes, problems, read, write

TEXT = "Mary sees Bonn"


def task(number: int, answer: str = "accept", **columns: Any) -> dict[str, Any]:
    return {"text": TEXT, "_input_hash": number, "_task_hash": -number, "_view_id": "ner_manual",
            "_timestamp": 1700000000, "meta": {"source": "news"}, "answer": answer,
            **columns}  # fmt: skip


def with_span(number: int, answer: str = "accept", **others: Any) -> dict[str, Any]:
    tokens = [{"text": "Mary", "start": 0, "end": 4, "id": 0, "ws": True}]
    span = {"start": 10, "end": 14, "label": "LOC", "token_start": 2, "token_end": 2, **others}
    return task(number, answer, tokens=tokens, spans=[span])


def test_only_accepted_rows_are_read(tmp_path: Path) -> None:
    rows = [with_span(1), with_span(2, "reject"), with_span(3, "ignore"), with_span(4, "reject")]
    path = write(tmp_path / "ner.jsonl", rows)
    assert read(path) == [{"text": TEXT, "spans": [{"start": 10, "end": 14, "label": "LOC"}]}]
    assert notes(path)[0] == (
        "ner.jsonl is an export of Prodigy: 1 of 4 rows are read; skipped: 1 with the answer "
        "ignore (ner.jsonl:3); skipped: 2 with the answer reject (ner.jsonl:2, ner.jsonl:4)"
    )
    assert len(read(path, labelled=False)) == 4  # to predict


@pytest.mark.parametrize("marked", [True, False])
def test_a_decision_about_a_label(tmp_path: Path, marked: bool) -> None:
    rows: Rows = [task(1, label="GOOD"), task(2, "reject", label="GOOD"), task(3, label="BAD")]
    if not marked:  # a person kept only these columns
        rows = [{name: row[name] for name in ("text", "label", "answer")} for row in rows]
    path = write(tmp_path / "a.jsonl", rows)
    assert [row["label"] for row in read(path)] == ["GOOD", "BAD"]


@pytest.mark.parametrize(
    ("accepted", "labels"),
    [
        ([["A"], ["B"]], ["A", "B"]),
        ([["A", "B"], [], ["B"]], [["A", "B"], [], ["B"]]),
        ([["A"], []], ["A"]),
        ([[1], [-1]], ["good", "bad"]),  # options with numbers: their texts are the names
    ],
)
def test_choices(tmp_path: Path, accepted: list[Any], labels: list[Any]) -> None:
    options = [{"id": "A", "text": "The A"}, {"id": "B", "text": "The B"},
               {"id": 1, "text": "good"}, {"id": -1, "text": "bad"}]  # fmt: skip
    rows = [task(n, options=options, accept=ids, config={"choice_style": "multiple"})
            for n, ids in enumerate(accepted)]  # fmt: skip
    path = write(tmp_path / "a.jsonl", rows)
    assert [row["label"] for row in read(path)] == labels
    assert {*read(path)[0]} == {"text", "label"}


def test_two_sessions_disagree(tmp_path: Path) -> None:
    rows = [
        {**task(1, label="GOOD"), "_session_id": "set-ada"},
        {**task(1, label="BAD"), "_session_id": "set-bob"},
        {**task(2, label="BAD"), "_session_id": "set-ada"},
    ]
    path = write(tmp_path / "a.jsonl", rows)
    assert [row["label"] for row in read(path)] == ["GOOD", "BAD"]
    assert notes(path)[1].startswith(
        "a.jsonl: annotators DISAGREE about 1 of the texts (a.jsonl:2)"
    )


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (task(2, "perhaps", spans=[]), "answer must be accept, reject or ignore, got 'perhaps'"),
        (with_span(2, end=40), "the entity from 10 to 40 is outside the text of 14 characters"),
        (with_span(2, label=None), "must be a name, got None"),
        (with_span(2, text="Rome"), "the entity 'Rome' is not at characters 10 to 14"),
        (task(2, spans="[]"), "column spans must be a list, got '[]'"),
        (
            {**with_span(2), "text": None, "image": "a.png"},
            "only annotations of texts are supported",
        ),
    ],
)
def test_a_damaged_row_is_refused_with_file_row_and_reason(
    tmp_path: Path, row: dict[str, Any], problem: str
) -> None:
    [message] = problems(write(tmp_path / "a.jsonl", [with_span(1), row, with_span(3)]))
    assert message.startswith("a.jsonl:2: Prodigy: ")
    assert problem in message
