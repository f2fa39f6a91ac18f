"""Records of Argilla, as both generations export them."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.common.importers.exports import notes, problems, read, write

TEXT = "Mary sees Bonn"
SPANS = [{"start": 10, "end": 14, "label": "LOC"}]


def answer(value: Any, user: str = "u1", **others: Any) -> dict[str, Any]:
    return {"value": value, "user_id": user, **others}


def record(fields: dict[str, str], **responses: Any) -> dict[str, Any]:
    """A record of Argilla 2, from `to_json`."""
    return {"id": "7", "fields": fields, "metadata": {}, "suggestions": {
            "label": {"value": "guess", "score": 0.5, "agent": "m"}},
            "responses": responses, "vectors": {}, "_server_id": "a-b"}  # fmt: skip


def flat(text: str, question: str, *answers: dict[str, Any]) -> dict[str, Any]:
    """A record of Argilla 2, from `to_datasets` or `to_dict(flatten=True)`."""
    return {"id": "7", "_server_id": "a-b", "text": text,
            f"{question}.responses": [item["value"] for item in answers] or None,
            f"{question}.responses.users": [item["user_id"] for item in answers] or None,
            f"{question}.responses.status": [item.get("status", "submitted") for item in answers]
            or None,
            f"{question}.suggestion": "guess"}  # fmt: skip


def feedback(text: str, question: str, *answers: dict[str, Any]) -> dict[str, Any]:
    """A record of a feedback data set of Argilla 1."""
    return {"fields": {"text": text}, "metadata": {}, "suggestions": [], "external_id": None,
            "responses": [
                {"user_id": item["user_id"], "status": item.get("status", "submitted"),
                 "values": {question: {"value": item["value"]}}} for item in answers]}  # fmt: skip


def table(text: str, question: str, *answers: dict[str, Any]) -> dict[str, Any]:
    """A record of a feedback data set of Argilla 1, from `format_as("datasets")`."""
    return {"text": text, question: [{"status": "submitted", **item} for item in answers],
            f"{question}-suggestion": None, "external_id": None, "metadata": "{}",
            f"{question}-suggestion-metadata": {"type": None, "score": None}}  # fmt: skip


def nested(text: str, question: str, *answers: dict[str, Any]) -> dict[str, Any]:
    return record({"text": text}, **({question: [*answers]} if answers else {}))


FORMS = pytest.mark.parametrize("form", [nested, flat, feedback, table])


@FORMS
@pytest.mark.parametrize(
    ("value", "column", "wanted"),
    [("good", "label", "good"), (["a", "b"], "label", ["a", "b"]), (SPANS, "spans", SPANS),
     (4, "rating", 4)],
)  # fmt: skip
def test_each_kind_of_answer_in_each_form(
    tmp_path: Path, form: Any, value: Any, column: str, wanted: Any
) -> None:
    question = "entities_of_it" if column == "spans" else column
    path = write(tmp_path / "a.json", [form(TEXT, question, answer(value))])
    [row] = read(path)
    assert (row["text"], row[column]) == (TEXT, wanted)
    assert "a.json is an export of Argilla" in notes(path)[0]
    assert "guess" not in map(str, row.values())  # a suggestion is no answer


@FORMS
def test_only_submitted_responses_count_and_the_first_is_used(tmp_path: Path, form: Any) -> None:
    rows = [
        form(TEXT, "label", answer("gone", status="discarded"), answer("good", "u2")),
        form(TEXT, "label", answer("draft", status="draft")),
        form(TEXT, "label"),
        form(TEXT, "label", answer("good"), answer("bad", "u2")),
        form(TEXT, "label", answer("good"), answer("good", "u2")),
    ]
    path = write(tmp_path / "a.jsonl", rows)
    assert [row["label"] for row in read(path)] == ["good", "good", "good"]
    first, second, _ = notes(path)
    assert "skipped: 2 without a submitted response (a.jsonl:2, a.jsonl:3)" in first
    assert second == (
        "a.jsonl: annotators DISAGREE about 1 of the texts (a.jsonl:4): "
        "the first submitted response is used"
    )


def test_spans_that_datasets_has_as_lists(tmp_path: Path) -> None:
    lists = {"start": [10], "end": [14], "label": ["LOC"], "text": ["Bonn"]}
    [row] = read(write(tmp_path / "a.jsonl", [table(TEXT, "spans", answer(lists))]))
    assert row["spans"] == SPANS


def test_questions_with_answers(tmp_path: Path) -> None:
    fields = {"question": "What does she see?", "context": TEXT}
    [row] = read(write(tmp_path / "a.json", [record(fields, answer=[answer("Bonn")])]))
    assert row == {**fields, "answer": "Bonn"}


def old(annotation: Any, **columns: Any) -> dict[str, Any]:
    return {"text": TEXT, "inputs": {"text": TEXT}, "prediction": [["guess", 0.9]],
            "prediction_agent": "m", "annotation": annotation, "annotation_agent": "u1", "id": "1",
            "metadata": {}, "status": "Validated", "event_timestamp": None, **columns}  # fmt: skip


def test_data_sets_before_feedback(tmp_path: Path) -> None:
    rows = [old("good", multi_label=False), old(None, multi_label=False, status="Default"),
            old("bad", multi_label=False, status="Discarded")]  # fmt: skip
    path = write(tmp_path / "a.jsonl", rows)
    assert [row["label"] for row in read(path)] == ["good"]
    assert "skipped: 1 that were discarded (a.jsonl:3)" in notes(path)[0]
    assert "skipped: 1 without an annotation (a.jsonl:2)" in notes(path)[0]
    several = [old(["a", "b"], multi_label=True), old([], multi_label=True)]
    assert [row["label"] for row in read(write(path, several))] == [["a", "b"], []]
    words = {"inputs": None, "tokens": TEXT.split(), "prediction": None}
    for entities in ([["LOC", 10, 14]], SPANS):
        [row] = read(write(path, [old(entities, **words)]))
        assert row["spans"] == SPANS
    written = old("A city.", inputs=None, prediction=[{"text": "guess", "score": 0.9}])
    [row] = read(write(path, [written]))
    assert (row["text"], row["target"]) == (TEXT, "A city.")


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (
            record({"text": TEXT}, label="good"),
            "must be a list of objects with a value, got 'good'",
        ),
        (
            record({"text": TEXT}, label=[{"user_id": "u"}]),
            "must be a list of objects with a value",
        ),
        (record({"text": TEXT}, label=[answer({"a": 1})]), "must be a string, a number or a list"),
        (record({"text": TEXT}, label=[answer([{**SPANS[0], "end": 99}])]), "outside the texts"),
        (
            {**record({"text": TEXT}), "responses": 3},
            "responses must be a list or an object, got 3",
        ),
    ],
)
def test_a_damaged_record_is_refused_with_file_row_and_reason(
    tmp_path: Path, row: dict[str, Any], problem: str
) -> None:
    good = record({"text": TEXT}, label=[answer("good")])
    [message] = problems(write(tmp_path / "a.jsonl", [good, row, good]))
    assert message.startswith("a.jsonl:2: Argilla (records): ")
    assert problem in message
