"""Columns and cells of pairs of texts."""

import pytest

from ftcluster_common.data.columns import margins_of, search_texts
from ftcluster_common.data.data_files import DataError
from ftcluster_common.tasks.embed import SentenceSimilarity, search_columns


@pytest.mark.parametrize("name", ["label", "score", "is_duplicate"])
def test_pairs_that_do_not_belong_together_are_no_positives(name: str) -> None:
    """Quora's question pairs have this form."""
    row = {"question1": "a", "question2": "b", name: "1"}
    columns = search_columns(SentenceSimilarity(), list(row))
    assert search_texts(row, columns) == ["a", "b"]
    for good in (1, 1.0, True, "1"):
        assert search_texts({**row, name: good}, columns) == ["a", "b"]
    for bad in (0, "0", 0.8, None, "contradiction"):
        with pytest.raises(DataError, match=f"^column {name} is .*: remove the rows"):
            search_texts({**row, name: bad}, columns)


TRIPLE = {"query": "a", "positive": "b", "negative_1": "c", "negative_2": "d"}


@pytest.mark.parametrize(
    ("negatives", "cell", "wanted"),
    [
        (["c"], 2.5, [2.5]),
        (["c"], "2.5", [2.5]),
        (["c"], [9, 7.5], [1.5]),
        (["c", "d"], [1, -1], [1, -1]),
        (["c", "d"], [3.0, 2.0, 4.0], [1.0, -1.0]),
    ],
)
def test_margins_are_read_as_margins_or_as_scores(
    negatives: list[str], cell: object, wanted: list[float]
) -> None:
    """sentence-transformers' MarginMSELoss accepts labels of these forms."""
    row = {"query": "a", "positive": "b", "negatives": negatives, "scores": cell}
    columns = search_columns(SentenceSimilarity(loss="margin_mse"), list(row))
    assert columns.margins == "scores"
    assert search_texts(row, columns) == ["a", "b", *negatives]
    assert margins_of(row, columns, len(negatives)) == wanted


@pytest.mark.parametrize("cell", [None, "x", [1], [1, 2, 3, 4], [1, None], float("nan"), {}])
def test_other_margins_are_refused(cell: object) -> None:
    row = {**TRIPLE, "margin": cell}
    columns = search_columns(SentenceSimilarity(loss="margin_mse"), list(row))
    with pytest.raises(DataError, match=r"^margin is .*, not the margins of the negatives \(2\)"):
        search_texts(row, columns)


def test_rows_of_an_evaluation_need_no_margins() -> None:
    """A label of 1 that marks a matching pair is no margin."""
    row = {"query": "a", "positive": "b", "label": 1}
    columns = search_columns(SentenceSimilarity(loss="margin_mse"), list(row))
    assert search_texts(row, columns) == ["a", "b"]
    with pytest.raises(DataError, match="there is no negative"):
        margins_of(row, columns, 0)
