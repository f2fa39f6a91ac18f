"""Rows of JSON documents, read in small pieces, are those of the module json."""

import io
import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from ftcluster_common.data import json_documents
from ftcluster_common.data.data_files import DataError, Table
from ftcluster_common.data.json_documents import (
    JsonDocumentError,
    NotADocumentError,
    rows_of_document,
)

ROWS = 5000
TEXT = "word " * 200  # 1 kB
SQUAD = {
    "version": "1.1",
    "data": [
        {
            "title": f"t{number}",
            "paragraphs": [
                {
                    "context": f"{TEXT}{number}",
                    "qas": [
                        {
                            "id": str(number),
                            "question": "what?",
                            "answers": [{"text": "word", "answer_start": 0}],
                        }
                    ],
                }
            ],
        }
        for number in range(ROWS)
    ],
}
LABEL_STUDIO = [
    {
        "id": number,
        "annotations": [
            {
                "result": [
                    {
                        "from_name": "mood", "to_name": "text", "type": "choices",
                        "value": {"choices": ["good"]},
                    }
                ]
            }
        ],
        "data": {"text": f"{TEXT}{number}"},
    }
    for number in range(ROWS)
]  # fmt: skip


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    "document",
    [[{"text": f"{TEXT}{n}", "label": 1} for n in range(ROWS)], SQUAD, LABEL_STUDIO],
    ids=["list", "SQuAD", "Label Studio"],
)
def test_few_rows_of_a_document_are_in_memory(
    tmp_path: Path, document: Any, indent: int | None
) -> None:
    path = tmp_path / "train.json"
    path.write_text(json.dumps(document, indent=indent))
    tracemalloc.start()
    try:
        assert sum(1 for _ in Table((path,))) == ROWS
        assert tracemalloc.get_traced_memory()[1] < path.stat().st_size / 2
    finally:
        tracemalloc.stop()


def document_of(draw: random.Random, depth: int = 0) -> Any:
    kind = draw.randrange(9 if depth < 4 else 6)
    size = draw.randrange(4)
    if kind < 6:
        text = "".join(draw.choices('aé\U0001f600\\"\n\t{[,:]} /', k=size * 5))
        number = draw.choice([1, -1, 10**20, 0])
        return (None, True, text, number, draw.uniform(-1e9, 1e9), 1.5e-300)[kind]
    if kind == 6:
        return {f"k{n}é": document_of(draw, depth + 1) for n in range(size)}
    return [document_of(draw, depth + 1) for _ in range(size)]


@pytest.mark.parametrize("block", [1, 2, 7, 64])
def test_pieces_of_any_size_give_the_rows_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(json_documents, "BLOCK", block)
    draw = random.Random(block)
    for _ in range(150):
        rows = [document_of(draw) for _ in range(draw.randrange(5))]
        more = {"a": 1, "b": {"c": [1]}, "d": rows, "e": "[", "f": None}
        for document in (rows, {"data": rows}, more):
            text = json.dumps(
                document, indent=draw.choice([None, 1]), ensure_ascii=draw.random() < 0.5
            )
            assert [*rows_of_document(lambda text=text: io.StringIO(text))] == rows
            cut = text[: draw.randrange(1, len(text))]
            with pytest.raises((JsonDocumentError, NotADocumentError)):
                [*rows_of_document(lambda cut=cut: io.StringIO(cut))]


@pytest.mark.parametrize("block", [1, 1 << 20])
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[{"a": 1},\n{"a": 2}\n{"a": 3}]', "3: not valid JSON: Expecting ',' delimiter"),
        ('[{"a": 1},\n{"a": 2}]\n\nx', "4: not valid JSON: Extra data"),
        ('[\n{"a": 1},\n{"a" 2}]', "3: not valid JSON: Expecting ':' delimiter"),
        ('[\n{"a": "b\n"}]', "2: not valid JSON: Invalid control character at"),
        ('[\n{"a": "b"}', "2: not valid JSON: Expecting ',' delimiter"),
        ('[\n{"a": "b', "2: not valid JSON: Unterminated string starting at"),
        (
            '[\n{"a": "b"},\n{"a": "\\ud83d"}]',
            "3: not valid JSON: it contains half of a",
        ),
        ("[" * 100_000, "1: not valid JSON: it is nested too deeply"),
        ('[{"a": ' + "9" * 400 + "}]", "1: not valid JSON: it contains a number with 400 digits"),
    ],
)
def test_damage_is_reported_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, problem: str, block: int
) -> None:
    monkeypatch.setattr(json_documents, "BLOCK", max(block, len(text) // 1000))
    path = tmp_path / "train.json"
    path.write_text(text)
    with pytest.raises(DataError) as raised:
        [*Table((path,))]
    assert str(raised.value).startswith(f"{path}:{problem}")


def test_what_cannot_be_read_in_pieces_is_refused_above_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_documents, "BLOCK", 64)
    monkeypatch.setattr(json_documents, "MOST_CHARACTERS", 2000)
    monkeypatch.setattr(json_documents, "MOST_WHOLE", 2000)
    path = tmp_path / "train.json"
    columns = {"text": {str(n): "word" * 5 for n in range(60)}}
    path.write_text(json.dumps(columns))
    assert len([*Table((path,))]) == 60
    path.write_text(json.dumps({**columns, "label": columns["text"]}))
    with pytest.raises(DataError, match=r"single list of rows, and more than 2,000 .*JSON Lines"):
        [*Table((path,))]
    path.write_text(json.dumps({"text": {str(n): "word" for n in range(500)}}))
    with pytest.raises(DataError, match=r"train\.json:1: .*more than 2,000 char.*lines=True"):
        [*Table((path,))]
    path.write_text(json.dumps([{"text": "a"}, {"text": "word" * 1000}]))
    with pytest.raises(DataError, match=r"a value has more than 2,000 characters"):
        [*Table((path,))]
