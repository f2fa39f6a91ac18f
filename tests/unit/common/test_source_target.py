"""The columns with source and target texts under the names in public data sets."""

from typing import Any

import pytest

from ftcluster_common.data.data_files import DataError
from ftcluster_common.data.source_target import source_and_target
from ftcluster_common.tasks.seq2seq import Seq2SeqLm, source_target_columns

WMT = {"translation": {"de": "Wiederaufnahme der Sitzung", "en": "Resumption of the session"}}


@pytest.mark.parametrize(
    ("options", "row", "names"),
    [
        ({}, {"id": "1", "article": "a", "highlights": "b"}, ("article", "highlights")),  # cnn
        ({}, {"document": "a", "summary": "b", "id": "1"}, ("document", "summary")),  # xsum
        ({}, {"id": "1", "dialogue": "a", "summary": "b"}, ("dialogue", "summary")),  # samsum
        ({}, {"text": "a", "summary": "b", "title": "c"}, ("text", "summary")),  # billsum
        ({}, {"Source": "a", "TARGET": "b"}, ("Source", "TARGET")),
        ({"source_column": "maintext"}, {"maintext": "a", "target": "b"}, None),
        (
            {"source_column": "maintext", "target_column": "title"},
            {"maintext": "a", "title": "b", "summary": "c"}, ("maintext", "title"),
        ),
        ({"target_column": "summary"}, {"text": "a", "target": "c", "summary": "b"},
         ("text", "summary")),
        ({"source_lang": "en", "target_lang": "de"}, {"en": "a", "de": "b"}, ("en", "de")),
        ({}, WMT, None),
    ],
)  # fmt: skip
def test_columns(options: Any, row: Any, names: tuple[str, str] | None) -> None:
    given = Seq2SeqLm(**options)
    if names is None:
        with pytest.raises(DataError, match="name the columns: source_"):
            source_target_columns(given, list(row))
        return
    columns = source_target_columns(given, list(row))
    assert columns.names == names
    assert source_and_target(row, columns) == ("a", "b")
    alone = {names[0]: "a"}
    assert source_and_target(alone, source_target_columns(given, list(alone), False)) == ("a", "")


def test_texts_by_their_language() -> None:
    columns = source_target_columns(Seq2SeqLm(source_lang="en", target_lang="de"), list(WMT))
    texts = ("Resumption of the session", "Wiederaufnahme der Sitzung")
    assert source_and_target(WMT, columns) == texts
    of_mbart = Seq2SeqLm(source_lang="en_XX", target_lang="de_DE")
    assert source_and_target(WMT, source_target_columns(of_mbart, list(WMT))) == texts
    to_predict = source_target_columns(of_mbart, list(WMT), False)
    assert source_and_target({"translation": {"en": "Yes"}}, to_predict) == ("Yes", "")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            {"translation": {"en": "Yes"}},
            "column translation contains no text for language de; found en",
        ),
        ({"translation": "Yes"}, "must be an object with a text for each language"),
        (
            {"translation": {"en": "Yes", "de": None}},
            "column translation.de must be a string, got None",
        ),
        ({"translation": {"en": " ", "de": "Ja"}}, "translation.en is empty"),
        ({"text": "Yes"}, "no column translation; found text"),
    ],
)
def test_rows_that_are_refused(row: Any, said: str) -> None:
    columns = source_target_columns(Seq2SeqLm(source_lang="en", target_lang="de"), list(WMT))
    with pytest.raises(DataError, match=said):
        source_and_target(row, columns)
