"""Files in CoNLL format, and rows with words and tags: accepted and rejected forms."""

from pathlib import Path
from typing import Any

import pytest

from ftcluster_common.data.data_files import DataError, Table, files_of
from ftcluster_common.data.tagged_words import read_tagged
from ftcluster_common.tasks.ner import TokenClassification, TokenClassificationSpec, tagged_columns

# the first lines on the shared task's page: word, part of speech, chunk, entity
CONLL_2003 = """-DOCSTART- -X- -X- O

U.N. NNP I-NP I-ORG
official NN I-NP O
Ekeus NNP I-NP I-PER
heads VBZ I-VP O
for IN I-PP O
Baghdad NNP I-NP I-LOC
. . O O

-DOCSTART- -X- -X- O
Peter NNP I-NP I-PER
"""


def rows_of(path: Path) -> list[Any]:
    [files] = files_of(path).values()
    return list(Table(files).with_places())


@pytest.mark.parametrize("name", ["train.txt", "train.conll", "data.iob"])
def test_the_form_of_2003(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(CONLL_2003)
    (tmp_path / "README.txt").write_text("Read me, and be so kind.\n")
    found = rows_of(tmp_path)
    assert [where.rpartition(":")[2] for where, _ in found] == ["3", "12"]
    columns = tagged_columns(TokenClassification(), list(found[0][1]))
    assert tuple(columns) == ("tokens", "", "ner_tags")
    row = read_tagged(found[0][1], columns)
    assert row.text == "U.N. official Ekeus heads for Baghdad ."
    assert row.tags == ("I-ORG", "O", "I-PER", "O", "O", "I-LOC", "O")
    assert [row.text[slice(*place)] for place in row.words] == row.text.split()
    assert found[0][1]["pos_tags"][:2] == ["NNP", "NN"]


def test_two_columns_with_tabs_and_comments(tmp_path: Path) -> None:
    """The corpora of BioBERT (NCBI-disease in TSV) and GermEval have this form."""
    text = "# http://example.org\nType 2\tB-Disease\n#\tO\n\n\nNo\tO\ngene\tO\n"
    (tmp_path / "devel.tsv").write_text(text)
    # the first line has the names of the columns
    (tmp_path / "train_dev.tsv").write_text("text\tlabel\na b\tx\n")
    found = dict(files_of(tmp_path))
    tokens = [row["tokens"] for row in Table((tmp_path / "devel.tsv",))]
    assert tokens == [["Type 2", "#"], ["No", "gene"]]
    assert list(Table((tmp_path / "train_dev.tsv",))) == [{"text": "a b", "label": "x"}]
    assert len(found) == 1


def test_a_line_without_its_tag_has_its_number(tmp_path: Path) -> None:
    (tmp_path / "train.conll").write_text("EU B-ORG\n\nrejects\ncalls O\n")
    (_, first), (where, second), _ = rows_of(tmp_path)
    assert first["tokens"] == ["EU"]
    assert where.endswith("train.conll:3")
    assert "1 cell ('rejects'), but the lines before have 2" in str(second)


# IOB1, IOB2 and IOBES of one sentence, from the paper of Ramshaw and Marcus and from seqeval
GOOD = {
    "IOB1": ["I-PER", "I-PER", "B-PER", "O", "I-LOC"],
    "IOB2": ["B-PER", "I-PER", "B-PER", "O", "B-LOC"],
    "IOBES": ["B-PER", "E-PER", "S-PER", "O", "S-LOC"],
    "BILOU": ["B-PER", "L-PER", "U-PER", "O", "U-LOC"],
    "plain": ["NN", "NN", "VB", "DT", "NN"],
}
NONE = ["O"] * 5


def problems(*rows: list[str], repair: bool = False) -> list[str]:
    words = ["a", "b", "c", "d", "e"]
    check = TokenClassificationSpec().row_check(
        TokenClassification(repair_tags=repair), True, ["tokens", "tags"]
    )
    return [check({"tokens": words[: len(tags)], "tags": tags}) for tags in rows]


@pytest.mark.parametrize("scheme", GOOD)
def test_each_scheme_is_taken_by_itself(scheme: str) -> None:
    assert problems(NONE, GOOD[scheme], GOOD[scheme], NONE) == [""] * 4


@pytest.mark.parametrize("other", [name for name in GOOD if name not in ("IOBES", "BILOU")])
def test_two_schemes_are_refused(other: str) -> None:
    [good, found] = problems(GOOD["IOBES"], GOOD[other])
    assert good == ""
    assert f"which is {other}, but earlier rows use IOBES (B-PER of 'a')" in found


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [["B-PER", "O", "I-LOC"]],
            "word 3, 'c', has the tag I-LOC, which is IOB1, but earlier rows use IOB2",
        ),
        ([["B-PER", "I-LOC"]], "word 2, 'b', has the tag I-LOC, which is IOB1"),
        (
            [["I-PER"], ["O", "B-PER"]],
            "word 2, 'b', has the tag B-PER, which is IOB2, but earlier rows",
        ),
        (
            [["B-PER", "I-PER", "S-LOC"]],
            "word 3, 'c', has the tag S-LOC, which IOBES (BILOU) does not allow there",
        ),
        (
            [["S-PER", "E-PER"]],
            "word 2, 'b', has the tag E-PER, which IOBES (BILOU) does not allow",
        ),
        (
            [["S-PER", "B-PER"]],
            "word 2, 'b', has the tag B-PER, which IOBES (BILOU) does not allow",
        ),
        ([["B-PER", "NN"]], "NN has no prefix such as B- or I-"),
    ],
)
def test_tags_that_are_not_of_their_scheme(rows: list[list[str]], said: str) -> None:
    assert said in problems(*rows)[-1]
    assert problems(*rows, repair=True)[-1] == ""


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            {"tokens": ["a", "b"], "tags": ["O"]},
            "2 words in column tokens, but 1 tags in column tags",
        ),
        ({"tokens": "a b", "tags": ["O", "O"]}, "column tokens must be a list of words, got 'a b'"),
        (
            {"tokens": ["a"], "tags": [3]},
            "the tag 3 is a number: set the names of all tags in order",
        ),
        ({"tokens": ["a"], "tags": [""]}, "must be a non-empty string or a number, got ''"),
        (
            {"text": "a b", "spans": [{"start": 2, "end": 9, "label": "X"}]},
            "is outside the text of",
        ),
        (
            {"text": "a b", "spans": [{"start": 1, "end": 2, "label": "X"}]},
            "is outside the text",
        ),
        ({"text": "a b", "spans": [[0, 1]]}, "[0, 1] needs whole numbers as start and end, "),
        (
            {"text": "abc", "spans": [[0, 2, "X"], [1, 3, "Y"]]},
            "span of Y at 1 begins within anoth",
        ),
        ({"text": 5, "spans": []}, "column text must be a string, got 5"),
    ],
)
def test_rows_that_cannot_be_learned(row: dict[str, Any], said: str) -> None:
    assert said in TokenClassificationSpec().row_check(TokenClassification(), True, list(row))(row)


def test_spans_of_doccano_and_prodigy() -> None:
    prodigy = {"text": " New York ", "tokens": [{"text": "New"}], "spans": [[1, 10, "LOC"]]}
    columns = tagged_columns(TokenClassification(), list(prodigy))
    assert read_tagged(prodigy, columns).spans == (("LOC", 1, 9),)
    exports = [  # exports of doccano with relations, and of Label Studio as JSON-MIN
        {"id": 0, "label": "LOC", "start_offset": 1, "end_offset": 10},
        {"start": 1, "end": 10, "text": " New York", "labels": ["LOC"]},
    ]
    for span in exports:
        assert read_tagged({**prodigy, "spans": [span]}, columns).spans == (("LOC", 1, 9),)
    with pytest.raises(DataError, match="needs whole numbers as start and end, and one string"):
        read_tagged({**prodigy, "spans": [{**exports[1], "labels": ["LOC", "ORG"]}]}, columns)
    assert tuple(tagged_columns(TokenClassification(), ["id", "text", "label"])) == (
        "", "text", "label",
    )  # fmt: skip
    with pytest.raises(DataError, match="no columns of words and their tags, or of a text"):
        tagged_columns(TokenClassification(), ["id", "text"])
    with pytest.raises(DataError, match="tokens alone, and no tags"):  # like the rows of CoNLL
        tagged_columns(TokenClassification(), ["tokens"])
    assert tagged_columns(TokenClassification(), ["tokens"], labelled=False).tokens == "tokens"
