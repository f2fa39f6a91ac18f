"""Dirty labels as people and spreadsheets write them, and rejected rows."""

import csv
import io
import unicodedata
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftcluster_common.data.class_names import as_word, match_names, name_key
from ftcluster_common.tasks.classify import TextClassification
from ftcluster_common.tasks.ner import TokenClassification
from ftcluster_common.tasks.registry import spec_of
from ftcluster_common.tasks.row_review import RowReview, alike_names, combinations
from ftcluster_common.tasks.spec import Options


def notes(rows: Sequence[dict[str, Any]], options: Options | None = None) -> list[str]:
    task = options or TextClassification()
    reviewed = RowReview(task, spec_of(task).column_uses(task, list(rows[0]), True))
    for row in rows:
        reviewed.add(row)
    return reviewed.notes("train")


def labelled(*labels: Any) -> list[dict[str, Any]]:
    return [{"text": "so it is", "label": label} for label in labels]


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [
        (["Good", "good", "good", "bad"], "3 rows with classes that look alike, "
         "trained as different classes: 'good' 2, 'Good' 1; write them alike"),
        (["caf\u00e9", "cafe\u0301", "bar"], "2 rows with classes that look alike"),
        (["\uff21\uff22", "AB", "c"], "2 rows with classes that look alike"),  # full-width letters
        (["new york", "new\u00a0york", "x"], "'new\\xa0york' 1"),
        (["good", "go\u200bod", "x"], "'go\\u200bod' 1"),
        (["good ", "good", "x"], "1 row with blanks around the label"),
        (["good", "N/A", "?", "N/A"], "3 rows with a class that looks like no label: 'N/A' 2"),
        (["good", "-", "bad"], "1 row with a class that looks like no label: '-' 1"),
        (["3,5", "4,0", "3,5"], "3 rows with a number with a comma as class"),
        (["1,500", "20,000", "a"], "2 rows with a number with a comma as class"),
        (["1", "1.0", "2"], "2 rows with classes that look alike"),
        (["'good'", "good", "bad"], "2 rows with classes that look alike"),
        ([["a ", " a"], ["b"]], "1 row with blanks around the label"),
        (["yes", "y\u0435s", "no"], "2 rows with classes that look alike"),  # a Cyrillic letter
        (["Grade A", "Grade \u0410", "B"], "2 rows with classes that look alike"),
        (["a", "['a', 'b']"], "1 row with a list written as text"),
        (["a", '["a", "b"]'], "1 row with a list written as text"),
        (["a", "b", "a, b"], "1 row with several classes in one text"),
        (["year", "year, ruler"], "1 row with several classes in one text"),
        (["a", "b", "a/b", "a|b"], "2 rows with several classes in one text"),
        ([["a", "b", "a"], ["b"]], "1 row with the same class twice, which counts once: 'a' 1"),
    ],
)  # fmt: skip
def test_dirty_labels_are_reported_with_counts(labels: list[Any], wanted: str) -> None:
    assert wanted in "\n".join(notes(labelled(*labels)))


def test_a_row_that_is_rejected_in_two_columns_counts_once() -> None:
    row = {"text": "so it is", "label": "a", "status": "discarded", "is_discarded": True}
    [note] = notes([row, {**row, "status": "submitted", "is_discarded": False}])
    assert note.startswith("train: 1 row that an annotator rejected")


@pytest.mark.parametrize(
    "labels",
    [
        ["positive", "negative"], [0, 1, 2], [True, False], ["+", "-"], ["1", "2"],
        ["Sci/Tech", "World", "Business", "Sports"],  # AG News
        ["comp.os.ms-windows.misc", "talk.politics.misc"],  # 20 Newsgroups
        ["alt.atheism", "Arts, Crafts & Sewing", "Toys & Games", "Books"],  # Amazon
        [["a"], [], ["b", "a"]], ["C", "C++", "C#"], ["[SEP]", "[CLS]"],
        ["not_entailment", "entailment"], ["\U0001f600", "\U0001f622"],
    ],
)  # fmt: skip
def test_clean_labels_are_not(labels: list[Any]) -> None:
    assert notes(labelled(*labels)) == []


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("answer", ["accept", "reject", "ignore"]),  # Prodigy
        ("status", ["submitted", "discarded", "discarded"]),  # Argilla
        ("was_cancelled", [False, True, "true"]),  # Label Studio
        ("annotation_status", ["done", "Skipped", "rejected"]),
    ],
)
def test_rejected_rows_are_counted_in_every_task(column: str, values: list[Any]) -> None:
    words = [{"tokens": ["a"], "tags": ["B-PER"], column: value} for value in values]
    texts = [{"text": "so it is", "label": "ab"[n % 2], column: v} for n, v in enumerate(values)]
    for rows, options in ((words, TokenClassification()), (texts, TextClassification())):
        [note] = notes(rows, options)
        assert note.startswith("train: 2 rows that an annotator rejected, used like all others")


def test_types_of_entities_that_look_alike() -> None:
    tags = ["B-PER", "B-Per", "O", "B-LOC"]
    rows = [{"tokens": tags, "tags": [tag] * 4} for tag in tags]
    [note] = notes(rows, TokenClassification())
    assert "2 rows with classes that look alike" in note


def test_cells_of_a_spreadsheet() -> None:
    """Written by csv like pandas columns of lists."""
    file = io.StringIO()
    table = csv.writer(file)
    table.writerows([("text", "label"), *(("so it is", str([n])) for n in ("a", "b", "a"))])
    rows = [*csv.DictReader(io.StringIO(file.getvalue()))]
    assert "3 rows with a list written as text" in notes(rows)[0]


@given(st.text(min_size=1, max_size=12), st.sampled_from(["NFC", "NFD", "NFKC", "NFKD"]))
def test_all_forms_of_a_name_have_one_key(name: str, form: Any) -> None:
    assert name_key(unicodedata.normalize(form, name)) == name_key(name)
    assert name_key(name_key(name)) == name_key(name)


@given(st.lists(st.text(max_size=6), max_size=8, unique=True))
def test_names_match_themselves(names: list[str]) -> None:
    assert match_names(names, names) == [*range(len(names))]
    alike = {name for group in alike_names(dict.fromkeys(names, 1)) for name in group}
    apart = [name for name in names if name not in alike]
    upper = [name.swapcase() for name in apart]
    found = match_names(upper, apart)
    for name, number in zip(upper, found, strict=True):
        assert number is None or name_key(apart[number]) == name_key(name)


@given(st.lists(st.text(max_size=8), max_size=12))
def test_no_label_makes_it_fail(labels: list[str]) -> None:
    for note in notes(labelled(*labels, "a")):
        assert note.startswith("train: ")
        assert "\n" not in note
    assert {*combinations(map(as_word, labels))} <= {*map(as_word, labels)}
