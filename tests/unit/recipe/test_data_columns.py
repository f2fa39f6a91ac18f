"""The columns of local data that a task reads."""

import json
from pathlib import Path
from typing import Any

import pytest

from ftcluster.recipe.data_columns import file_notes, find_columns
from ftcluster.recipe.recipe import load_recipe
from ftcluster_common.data.column_uses import UNREAD
from ftcluster_common.protocol.job import PREDICT

QUESTION = {"question": "When?", "context": "1973", "answers": {"text": [], "answer_start": []}}


@pytest.mark.parametrize(
    ("recipe", "row", "columns", "to_predict"),
    [
        (
            "classify", {"id": 1, "premise": "a", "hypothesis": "b", "label": 1},
            {"text": ("premise", "hypothesis"), "label": ("label",), UNREAD: ("id",)},
            {"text": ("premise", "hypothesis"), UNREAD: ("id", "label")},
        ),
        (
            "squad", QUESTION,
            {"question": ("question",), "context": ("context",), "answers": ("answers",)},
            {"question": ("question",), "context": ("context",), UNREAD: ("answers",)},
        ),
        ("clm", {"content": "to be"}, {"text": ("content",)}, {"text": ("content",)}),
        (
            "embed", {"anchor": "a", "answer": "b", "negative_1": "c"},
            {"query": ("anchor",), "positive": ("answer",), "negative": ("negative_1",)},
            {"text": ("anchor",), UNREAD: ("answer", "negative_1")},
        ),
        (
            "sft", {"prompt": "a", "completion": "b", "id": 1},
            {"prompt": ("prompt",), "completion": ("completion",), UNREAD: ("id",)},
            {"prompt": ("prompt",), "completion": ("completion",), UNREAD: ("id",)},
        ),
        (
            "dpo", {"prompt": "a", "chosen": "b", "rejected": "c", "score": 1},
            {"chosen": ("chosen",), "rejected": ("rejected",), "prompt": ("prompt",),
             UNREAD: ("score",)},
            {"chosen": ("chosen",), "rejected": ("rejected",), "prompt": ("prompt",),
             UNREAD: ("score",)},
        ),
        (
            "kto", {"question": "a", "answer": "b", "thumbs_up": 1, "score": 1},
            {"prompt": ("question",), "completion": ("answer",), "label": ("thumbs_up",),
             UNREAD: ("score",)},
            {"prompt": ("question",), "completion": ("answer",), "label": ("thumbs_up",),
             UNREAD: ("score",)},
        ),
        (
            "few-shot", {"review": "a", "category": "b", "id": 1},
            {"text": ("review",), "label": ("category",), UNREAD: ("id",)},
            {"text": ("review",), UNREAD: ("category", "id")},
        ),
        (
            "rerank", {"query": "a", "text": "b", "label": 1},
            {"query": ("query",), "text": ("text",), "label": ("label",)},
            {"query": ("query",), "text": ("text",), UNREAD: ("label",)},
        ),
        (
            "distill", {"id": 1, "text": "a", "label": "b"},
            {"text": ("text",), "label": ("label",), UNREAD: ("id",)},
            {"text": ("text",), "label": ("label",), UNREAD: ("id",)},
        ),
        (
            "seq2seq", {"id": 1, "article": "a", "highlights": "b"},
            {"source": ("article",), "target": ("highlights",), UNREAD: ("id",)},
            {"source": ("article",), UNREAD: ("id", "highlights")},
        ),
    ],
)  # fmt: skip
def test_columns_of_each_task(
    tmp_path: Path, recipe: str, row: Any, columns: Any, to_predict: Any
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n")
    given = load_recipe(recipe, [f"data={file}"])
    assert find_columns(given) == columns
    assert find_columns(given, PREDICT) == to_predict


def test_what_this_machine_cannot_tell(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("to be")
    (tmp_path / "train.parquet").write_bytes(b"PAR1")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    for name in ("train.parquet", "empty.csv", "other.csv", "none.csv"):
        assert find_columns(load_recipe("classify", [f"data={tmp_path / name}"])) == {}
    assert find_columns(load_recipe("clm", [f"data={tmp_path / 'book.txt'}"])) == {}
    assert find_columns(load_recipe("quickstart")) == {}


def test_an_encoding_that_was_found_is_told(tmp_path: Path) -> None:
    text = "text,label\ncaf\u00e9 on the corner,1\n"
    path = tmp_path / "train.csv"
    for encoding, said in (
        ("utf-8", ()),
        ("cp1252", ("train.csv is not encoded in UTF-8, so it is read as Windows-1252",)),
        ("utf-16", ("train.csv is not encoded in UTF-8, so it is read as UTF-16",)),
    ):
        path.write_text(text, encoding=encoding)
        assert file_notes(load_recipe("classify", [f"data={tmp_path}"])) == said


def test_texts_that_are_left_out_are_named(tmp_path: Path) -> None:
    for name in ("train.txt", "wiki.test.txt", "validation.txt"):
        (tmp_path / name).write_text("a text")
    said = ("files skipped because of their names: wiki.test.txt",)
    assert file_notes(load_recipe("mlm", [f"data={tmp_path}"])) == said
    (tmp_path / "wiki.test.txt").unlink()
    assert file_notes(load_recipe("mlm", [f"data={tmp_path}"])) == ()
