"""Assigning files to splits, and reading rows in the forms of public files.

recipe/test_dataset_checks.py has more tests of rows.
"""

from pathlib import Path

import pytest

from ftcluster_common.data.columns import find_texts
from ftcluster_common.data.data_files import DataError, Table, encoding_of, files_of, texts_of
from ftcluster_common.tasks.classify import TextClassification, classification_columns


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
    with pytest.raises(
        DataError, match=r"files of split train in several formats: train\.csv, train\.jsonl"
    ):
        names_of(tmp_path, "train.csv", "train.jsonl")


def test_texts_of_a_folder_are_one_set(tmp_path: Path) -> None:
    for name in ("test-notes.txt", "b.txt", "validation.txt", "about.json", "wiki.valid.txt",
                 "Test.txt", "wiki.train.txt", "wiki.test.txt"):  # fmt: skip
        (tmp_path / name).touch()
    found = {split: [path.name for path in paths] for split, paths in texts_of(tmp_path).items()}
    assert found == {
        "train": ["b.txt", "test-notes.txt", "wiki.train.txt"],
        "validation": ["validation.txt", "wiki.valid.txt"],
        "test": ["Test.txt", "wiki.test.txt"],
    }
    (tmp_path / "train.csv").touch()
    assert texts_of(tmp_path) == {}
    assert list(texts_of(tmp_path / "b.txt")) == ["train"]


def test_columns_that_are_asked_for_and_found() -> None:
    found = TextClassification()
    assert classification_columns(found, ["id", "Text", "Label"]) == (("Text",), ("Label",))
    assert classification_columns(found, ["Text"], labelled=False) == (("Text",), ())
    asked = TextClassification(text_columns=("a", "b"), label_column="c")
    assert classification_columns(asked, ["a", "b", "c", "label"]) == (("a", "b"), ("c",))
    assert find_texts(["x"]) == ()
    for options, columns, problem in (
        (asked, ["a", "B", "C"], r"no column b \(B is one\), c \(C is one\); found a, B, C"),
        (asked, ["a", "label"], r"no column b, c; found a, label; name the columns: text_colu"),
        (found, ["body", "y"], "no column label; found body, y; name the columns: text_colum"),
        (found, ["x", "label"], "no column with a usual name for texts; found x, label"),
    ):
        with pytest.raises(DataError, match=problem):
            classification_columns(options, columns)


def rows_of(path: Path, content: str | bytes) -> list[dict[str, object]]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return [dict(row) for row in Table((path,))]


def test_a_quote_in_tsv_is_a_character(tmp_path: Path) -> None:
    """GLUE's files contain such quotes."""
    lines = [f'"good thing number {number}\t{number % 2}\n' for number in range(6)]
    rows = rows_of(tmp_path / "a.tsv", "text\tlabel\n" + "".join(lines))
    assert [row["text"] for row in rows] == [f'"good thing number {n}' for n in range(6)]
    assert [row["label"] for row in rows] == ["0", "1"] * 3


def test_a_quote_that_swallows_rows_of_csv_is_refused(tmp_path: Path) -> None:
    good = 'text,label\n"a ""quoted"", word\nin two lines",1\nb,0\n'
    assert [row["label"] for row in rows_of(tmp_path / "a.csv", good)] == ["1", "0"]
    bad = 'text,label\na,1\n"b,0\nc,1\n"d,0\n'
    with pytest.raises(DataError, match=r"a\.csv:5: .*; the row begins at line 3; in CSV, a quote"):
        rows_of(tmp_path / "a.csv", bad)


def test_csv_of_excel_and_kaggle(tmp_path: Path) -> None:
    """Columns without names or values at the end, Windows encodings, and Excel's line sep=."""
    spam = "v1,v2,,,\r\nham,5 \u00a3 caf\u00e9,,,\r\n".encode("cp1252")
    path = tmp_path / "spam.csv"
    assert rows_of(path, spam) == [{"v1": "ham", "v2": "5 \u00a3 caf\u00e9"}]
    assert encoding_of(path) == "cp1252"
    # Excel's "Unicode text"
    assert rows_of(path, "v1,v2\r\nham,\u0441\u043f\u0430\u043c\r\n".encode("utf-16")) == [
        {"v1": "ham", "v2": "\u0441\u043f\u0430\u043c"}
    ]
    assert rows_of(path, "sep=;\r\ntext;label\r\na, b;1\r\n") == [{"text": "a, b", "label": "1"}]
    for content, said in (
        ("v1,v2,,\na,b,c,\n", r"spam\.csv:2: 4 values for 2 columns"),
        ("text,label,text\na,1,b\n", r"spam\.csv:1: several columns are called text; rename them"),
        # Russian: each letter is an accented letter in Western European encodings
        (
            "text,label\n\u0445\u043e\u0440\u043e\u0448\u043e,1\n".encode("cp1251"),
            r"spam\.csv: not UTF-8, and its encoding is unknown; .*iconv",
        ),
        (b"text,label\nb,1\n\x81\xff,1\n", r"spam\.csv:3: neither UTF-8 nor Windows-1252; .*iconv"),
    ):
        with pytest.raises(DataError, match=said):
            rows_of(path, content)
