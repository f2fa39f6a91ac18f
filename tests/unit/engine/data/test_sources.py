"""Rows, texts and labels as the hosts read them."""

import json
from pathlib import Path

import pytest

from ftcluster_common.data.class_names import find_labels
from ftcluster_common.data.data_files import DataError
from ftcluster_common.recipe import Recipe
from ftcluster_common.tasks.classify import TextClassification
from ftcluster_common.tasks.lm import CausalLm
from ftcluster_train.engine.data.sources import (
    BATCH_ROWS,
    TextFiles,
    column_batches,
    load_rows,
    load_texts,
)
from ftcluster_train.engine.tasks.classify.labels import (
    ClassLabels,
    check_classes,
    number_labels,
    read_class,
    read_number,
)
from ftcluster_train.errors import TrainError

TEXT = CausalLm()
GENERATED = "generated:train=4,validation=2,seed=1"


def jsonl(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def message_of(error: pytest.ExceptionInfo[TrainError]) -> str:
    return f"{error.value.message} / {error.value.hint}"


def test_rows_of_a_folder(tmp_path: Path) -> None:
    jsonl(tmp_path / "train.jsonl", {"a": 1}, {"a": 2})
    jsonl(tmp_path / "validation_matched.jsonl", {"a": 3})
    found = load_rows(str(tmp_path), None)
    assert list(found) == ["train", "validation_matched"]
    assert list(found["train"]) == [{"a": 1}, {"a": 2}]
    assert list(found["train"]) == list(found["train"])  # the rows can be iterated again
    # an invalid line
    (tmp_path / "train.jsonl").write_text('{"a": 1}\n\n[]\n')
    with pytest.raises(DataError, match=r"train\.jsonl:3: the row must be a JSON object"):
        list(load_rows(str(tmp_path), None)["train"])
    (tmp_path / "train.jsonl").write_text("{")
    with pytest.raises(DataError, match=r"train\.jsonl:1: not valid JSON"):
        list(load_rows(str(tmp_path), None)["train"])
    # generated rows
    found = load_rows(GENERATED, None)
    assert [len(list(found[split])) for split in ("train", "validation")] == [4, 2]
    with pytest.raises(TrainError, match="cannot be parsed"):
        load_rows("generated:many", None)


def test_rows_come_in_batches_of_columns() -> None:
    rows = [{"a": i, "b": -i, "c": 0} for i in range(BATCH_ROWS + 1)]
    found = list(column_batches(rows, ("b", "a"), "train"))
    assert [len(batch["a"]) for batch in found] == [BATCH_ROWS, 1]
    assert found[1] == {"b": [-BATCH_ROWS], "a": [BATCH_ROWS]}
    with pytest.raises(TrainError) as caught:
        list(column_batches([{"a": 1}, {"x": 1, "y": 2}], ("a",), "train"))
    assert "row 2 of train has no column a; found x, y" in message_of(caught)


def test_texts_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("second")
    (tmp_path / "a.txt").write_text("first\ntext")
    found = load_texts(str(tmp_path), None, TEXT)
    assert list(found) == ["train"]
    assert [piece.text for piece in found["train"]] == ["first\ntext", "second"]
    assert all(piece.last for piece in found["train"])
    (tmp_path / "validation.txt").write_text("third")
    found = load_texts(str(tmp_path), None, TEXT)
    assert [piece.text for piece in found["validation"]] == ["third"]
    assert len(list(found["train"])) == 2


def test_texts_in_a_column_of_rows(tmp_path: Path) -> None:
    jsonl(tmp_path / "train.jsonl", {"text": "one"}, {"text": ""}, {"text": "two"})
    found = load_texts(str(tmp_path), None, TEXT)
    assert [piece.text for piece in found["train"]] == ["one", "two"]
    jsonl(tmp_path / "train.jsonl", {"Content": "one"}, {"Content": 2})
    with pytest.raises(TrainError) as caught:
        list(load_texts(str(tmp_path), None, TEXT)["train"])
    assert "row 2 of train of" in message_of(caught)
    with pytest.raises(DataError, match="no column body; found Content; name it: text_column=NAME"):
        load_texts(str(tmp_path), None, CausalLm(text_column="body"))


def test_a_folder_without_texts(tmp_path: Path) -> None:
    with pytest.raises(TrainError, match=r"has no file that ends in \.csv"):
        load_texts(str(tmp_path), None, TEXT)
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(TrainError, match=r"a\.txt: not UTF-8"):
        list(TextFiles((tmp_path / "a.txt",)))


@pytest.mark.parametrize("label", [True, 1.0, None])
def test_classes_are_whole_numbers(label: object) -> None:
    with pytest.raises(TrainError, match="not a class number"):
        read_class(label, "train")


def test_a_set_that_is_not_labelled() -> None:
    with pytest.raises(TrainError, match="train has the label -1, so it is not labelled"):
        read_class(-1, "train")


@pytest.mark.parametrize(
    ("labels", "names", "read"),
    [
        (["pos", "neg ", "pos"], ["neg", "pos"], {"neg": 0, " pos": 1}),
        ([True, False], ["false", "true"], {True: 1}),
        (["0", "2", "1"], ["0", "1", "2"], {"2": 2, 0: 0}),
        ([0.0, 1.0], ["0", "1"], {1.0: 1}),  # written by pandas
        ([1, 2], ["1", "2"], {1: 0, "2": 1}),
        ([7372, 6021], ["6021", "7372"], {6021: 0, 7372: 1}),
        (["01", "1"], ["01", "1"], {"01": 0, "1": 1}),
        ([5_000_000_001, 10], ["10", "5000000001"], {5_000_000_001: 1}),
        (["10", "9"], ["9", "10"], {"10": 1}),
    ],
)
def test_labels_are_classes_in_their_order(
    labels: list[object], names: list[str], read: dict[object, int]
) -> None:
    found = ClassLabels(number_labels(find_labels(labels, "label")))
    assert found.names == names
    assert {label: found.read(label, "train") for label in read} == read
    with pytest.raises(TrainError, match="has the label 'good'"):
        found.read("good", "validation")


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        (["a", 1], "column c mixes words and numbers as labels"),
        (["a", " "], "a row has no label in column c"),
        ([1.0, float("nan")], "a row has no label in column c"),
        (["0.5", "1"], "the labels in column c are numbers with fractions"),
        ([f"text {i}" for i in range(30)], "column c contains 30 distinct labels in 30 rows"),
        ([*range(5, 35)], "column c contains 30 distinct labels in 30 rows"),
    ],
)
def test_columns_without_classes(labels: list[object], problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        find_labels(labels, "c")


def test_numbers() -> None:
    assert read_number(3, "train") == 3.0
    assert read_number("2.5", "train") == 2.5
    for label in (True, "three", float("nan"), "nan", None):
        with pytest.raises(TrainError, match=r"not a (finite )?number"):
            read_number(label, "train")


def test_the_classes_are_those_of_training() -> None:
    recipe, options = Recipe("r", "m", "d", TextClassification()), TextClassification()
    assert (
        check_classes(recipe, options, {"train": {0: 1, 2: 1}, "validation": {2: 1}}, "abc", False)
        == []
    )
    for classes, said in (
        ({"train": {0: 1, 1: 3}, "validation": {0: 1, 2: 2}}, "validation has classes that train"),
        ({"train": {1: 3}, "validation": {1: 2}}, "all rows of train have the class b"),
    ):
        with pytest.raises(TrainError, match=said):
            check_classes(recipe, options, classes, "abc", False)
