"""Columns and cells of pairs of texts."""

import pytest

from ftcluster_common.data.columns import search_texts
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
