"""Which files are which split; their rows are tested in recipe/test_dataset_checks.py."""

from pathlib import Path

import pytest

from ftcluster_common.columns import classification_columns, find_texts
from ftcluster_common.data_files import DataError, files_of, texts_of
from ftcluster_common.recipe import TextClassification


def names_of(folder: Path, *files: str) -> dict[str, list[str]]:
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return {split: [path.name for path in paths] for split, paths in files_of(folder).items()}


@pytest.mark.parametrize(
    ("files", "splits"),
    [
        (("train.csv", "dev.csv", "test.csv", "README.md"),
         {"train": ["train.csv"], "validation": ["dev.csv"], "test": ["test.csv"]}),
        (("reviews.csv",), {"train": ["reviews.csv"]}),
        (("a.jsonl", "b.jsonl", "test.jsonl"),
         {"train": ["a.jsonl", "b.jsonl"], "test": ["test.jsonl"]}),
        (("imdb_train.tsv", "imdb_valid.tsv"),
         {"train": ["imdb_train.tsv"], "validation": ["imdb_valid.tsv"]}),
        (("data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet", "x.md"),
         {"train": ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"]}),
        (("train.json", "validation_matched.json"),
         {"train": ["train.json"], "validation_matched": ["validation_matched.json"]}),
        (("notes.txt",), {}),
    ],
)  # fmt: skip
def test_files_of_a_folder(
    tmp_path: Path, files: tuple[str, ...], splits: dict[str, list[str]]
) -> None:
    assert names_of(tmp_path, *files) == splits


def test_several_formats_of_a_split(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"several formats of train: train\.csv, train\.jsonl"):
        names_of(tmp_path, "train.csv", "train.jsonl")


def test_texts_of_a_folder_are_one_set(tmp_path: Path) -> None:
    for name in ("test-notes.txt", "b.txt", "validation.txt", "about.json"):
        (tmp_path / name).touch()
    found = {split: [path.name for path in paths] for split, paths in texts_of(tmp_path).items()}
    assert found == {"train": ["b.txt", "test-notes.txt"], "validation": ["validation.txt"]}
    (tmp_path / "train.csv").touch()
    assert texts_of(tmp_path) == {}
    assert list(texts_of(tmp_path / "b.txt")) == ["train"]


def test_columns_that_are_asked_for_and_found() -> None:
    found = TextClassification()
    assert classification_columns(found, ["id", "Text", "Label"]) == (("Text",), "Label")
    assert classification_columns(found, ["Text"], labelled=False) == (("Text",), "")
    asked = TextClassification(text_columns=("a", "b"), label_column="c")
    assert classification_columns(asked, ["a", "b", "c", "label"]) == (("a", "b"), "c")
    assert find_texts(["x"]) == ()
    for options, columns, problem in (
        (asked, ["a", "B", "C"], r"no column b \(B is one\), c \(C is one\); found a, B, C"),
        (asked, ["a", "label"], r"no column b, c; found a, label; name them: text_columns=NAME la"),
        (found, ["body", "y"], "no column label; found body, y; name them: text_columns=body labe"),
        (found, ["x", "label"], "no column that is known for texts; found x, label"),
    ):
        with pytest.raises(DataError, match=problem):
            classification_columns(options, columns)
