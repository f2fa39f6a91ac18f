"""`ftcluster data`; tests/engine/test_data_report.py tests the report of the head."""

import json
from pathlib import Path
from typing import Any

import pytest

from ftcluster.cluster.saved import Cluster, remember
from ftcluster.errors import FtclusterError
from ftcluster.operations.plan import data
from ftcluster.progress.data import set_line
from ftcluster_common.protocol.events import is_data
from tests.unit.clusters import cluster, host
from tests.unit.planning.test_memory import write_weights
from tests.unit.shell import Shell

REPORT: dict[str, Any] = {
    "columns": {"text": ["body"], "label": ["label"], "not read": ["title"]},
    "sets": [
        {"set": "train", "rows": 3, "samples": 3, "documents": 3, "median": 5, "longest": 8,
         "limit": 8, "cut": 1, "left_out": 0, "classes": {"good": 2, "bad": 1},
         "duplicates": None},
    ],
    "samples": [[{"label": "good", "parts": [["[CLS] so\n", False], ["it is", True]]}]],
}  # fmt: skip
NOTICES = ["NOT READ, although it contains texts: column title; the task reads body, label"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a folder with a model and data, in which training and validation share two rows."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / "model" / name).write_text("{}")
    write_weights(tmp_path / "model/model.safetensors", a=("F32", [2, 3]))
    rows = [("It works well.", "So it is.", "good"), ("It is good.", "a b c", "good"),
            ("No, it is not.", "x", "bad")]  # fmt: skip
    for name, some in (("Train", rows), ("dev", rows[1:])):
        lines = [
            json.dumps(dict(zip(("title", "body", "label"), row, strict=True))) for row in some
        ]
        (tmp_path / f"{name}.JSONL").write_text("\n".join(lines))


def told(shell: Shell, *more: str) -> str:
    given = ("--data", ".", "--model", "model")
    return shell(["data", "classify", "text_columns=body", *given, *more]).out


def test_rows_classes_and_duplicates_without_a_cluster(shell: Shell) -> None:
    found = json.loads(told(shell, "--json"))
    assert found["host"] is None
    assert found["columns"] == {"text": ["body"], "label": ["label"], "not read": ["title"]}
    assert found["sets"] == [
        {"set": "train", "rows": 3, "classes": {"good": 2, "bad": 1}},
        {"set": "validation", "rows": 2, "classes": {"good": 1, "bad": 1}, "duplicates": 2},
    ]
    assert found["notes"] == ["NOT READ, although it contains texts: column title"]
    text = told(shell)
    assert "validation: 2 rows, 2 classes (good 1, bad 1), 2 OF THEM ALSO IN TRAIN" in text


def test_a_test_set_is_counted_if_it_is_evaluated(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "dev.JSONL").rename(tmp_path / "test.jsonl")
    found = json.loads(told(shell, "--json", "test_split_rows=1", "group_column=title"))
    assert found["notes"] == []  # the column title is read
    assert [(one["set"], one["rows"], one.get("duplicates")) for one in found["sets"]] == [
        ("train", 3, None), ("test", 2, 2),
    ]  # fmt: skip
    assert [one["set"] for one in json.loads(told(shell, "--json"))["sets"]] == ["train"]


def test_several_classes_in_a_cell_are_noted(shell: Shell, tmp_path: Path) -> None:
    """The files are those that pandas and json.dumps write of lists, and a person of tags."""
    arguments = ["data", "classify", "--model", "model", "--here", "--json", "--data", "tags.csv"]
    for form, cells in {
        "list": ["\"['a']\"", "\"['a', 'b']\"", "[]"],
        "comma": ["a", '"a, b"', '"b,a"', "b", ""],
        "pipe": ["a", "a|b", "b|a", "b", ""],
    }.items():
        rows = "".join(f"text {number},{cell}\n" for number, cell in enumerate(cells))
        (tmp_path / "tags.csv").write_text(f"text,label\n{rows}")
        found = shell(arguments).document
        assert f"(label_separator={form}); to treat each cell as one class" in found["notes"][0]
        assert found["sets"][0]["classes"] == (
            {"a": 2, "b": 1} if form == "list" else {"a": 3, "b": 3}
        )
        assert any("1 row with an empty cell, read as none" in note for note in found["notes"]) == (
            form != "list"
        )
    whole = shell([*arguments, "label_separator=none"], code=1).err
    assert "tags.csv:6: label is empty" in whole
    (tmp_path / "tags.csv").write_text("text,label\nso,c\nno,a#b\n")
    named = shell([*arguments, "label_separator=hash"]).document
    assert named["sets"][0]["classes"] == {"c": 1, "a": 1, "b": 1}
    assert named["notes"] == []


def test_dirty_labels_are_noted(shell: Shell, tmp_path: Path) -> None:
    """One of four rows has two classes, which a person wrote into a cell."""
    arguments = ("data", "classify", "--model", "model", "--here", "--data")
    rows = 'text,label,status\nso,a,done\nno,"a, b",rejected\nyes,A,done\nup,N/A,ignored\n'
    (tmp_path / "cells.csv").write_text(rows)
    text = shell([*arguments, "cells.csv"]).out
    for note in (
        "train: 2 rows that an annotator rejected, used like all others: 'status: rejected' 1",
        "train: 2 rows with classes that look alike, trained as different classes: 'a' 1, 'A' 1",
        "train: 1 row with a class that looks like no label: 'N/A' 1",
        "train: 1 row with several classes in one text, trained as a separate class: 'a, b' 1",
    ):
        assert note in text


def test_the_number_of_classes_is_no_cap_of_a_table(shell: Shell, tmp_path: Path) -> None:
    lines = [f"text {n},class {n % 150}" for n in range(450)]
    (tmp_path / "many.csv").write_text("\n".join(["text,label", *lines]))
    text = shell(["data", "classify", "--model", "model", "--here", "--data", "many.csv"]).out
    assert "train: 450 rows, 150 classes (" in text
    of_head = {**REPORT["sets"][0], "classes": {f"c{n}": 3 for n in range(100)}, "class_count": 150}
    assert "3 rows, 150 classes (c0 3, " in set_line(of_head)
    assert is_data({**REPORT, "sets": [of_head]})


def test_the_head_says_what_the_model_sees(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def read_data(place: Any, job: Any, folders: Any, token: str) -> Any:
        asked.append((place.head, job["recipe"]["data"], folders, token))
        return {"report": REPORT, "notices": NOTICES}

    monkeypatch.setattr(data, "read_data", read_data)
    many = cluster(host("node0", cores=8), host("node1", cores=8))
    remember(Cluster(inventories=(Path("/inventory.ini"),), facts=many))
    text = told(shell)
    assert text.startswith(f"note: {NOTICES[0]}\n")
    assert "train: 3 rows, 2 classes (good 2, bad 1), 5 tokens (median)" in text
    assert "  [CLS] so\\n«it is» -> good" in text
    [(head, path, folders, token)] = asked
    assert (head, token) == ("node0", "")
    assert sorted(source for source, _ in folders) == [f"{Path.cwd()}", f"{Path.cwd()}/model"]
    assert path in [copied for _, copied in folders]
    assert json.loads(told(shell, "--here", "--json"))["host"] is None
    assert len(asked) == 1


def test_data_that_the_head_refuses(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> Any:
        raise FtclusterError("node0: train.jsonl:3: the chat template omits message 1")

    monkeypatch.setattr(data, "read_data", refused)
    remember(Cluster(inventories=(Path("/inventory.ini"),), facts=cluster(host("node0", cores=8))))
    err = shell("data classify --data . --model model text_columns=body", 1).err
    assert "train.jsonl:3: the chat template omits" in err


def test_rows_that_are_wrong_are_refused_here(shell: Shell) -> None:
    Path("bad.csv").write_text("text,label\na,\n")
    assert "bad.csv:2: label is empty" in shell("data classify --data bad.csv --model model", 1).err


def test_rows_that_only_hosts_read_are_not_passed_over_in_silence(
    shell: Shell, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("A text without rows.\n" * 9)
    shown = shell(["data", "clm", "--here", "--data", "notes.txt", "--model", "model"])
    assert (
        "notes.txt was read, because only hosts read Parquet, Arrow and text"
        in shown.err + shown.out
    )


NOTES = "Ada wrote the notes in 1843. In 1852 Ada, the author of the notes, died."
ANSWERED = [
    {"question": "Who wrote?", "context": NOTES, "answer": "Ada"},
    {"question": "When?", "context": NOTES, "answer": "1843"},
    {"question": "Where?", "context": NOTES, "answer": "London"},
    {"question": "Died when?", "context": NOTES, "answer": "1852"},
]


def test_rows_without_a_position_are_refused_or_skipped_by_their_lines(
    shell: Shell, tmp_path: Path
) -> None:
    (tmp_path / "qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ANSWERED))
    command = "data squad --here --data qa.jsonl --model model"
    refused = shell(command, 1).err
    assert (
        "qa.jsonl:1: the answer 'Ada' occurs 2 times in the context, at characters 0, 37" in refused
    )
    assert (
        "qa.jsonl:3: the context does not contain the answer 'London': correct the answer, or"
        in refused
    )
    assert "qa.jsonl:2" not in refused
    shown = shell(f"{command} repeated_answers=skip missing_answers=skip").out
    assert "columns: question (question), context (context), answer (answers)" in shown
    assert (
        "train: 1 row skipped, because the context has the answer several times (qa.jsonl:1)"
        in shown
    )
    assert (
        "train: 1 row skipped, because the context does not have the answer (qa.jsonl:3)" in shown
    )
    assert "train: 4 rows, 2 LEFT OUT" in shown
    first = shell(f"{command} repeated_answers=first missing_answers=skip").out
    assert "train: 4 rows, 1 LEFT OUT" in first
