"""Functions for embedding tasks that read texts and scores from rows, and tokens from samples."""

import hashlib
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Any

from ftcluster_common.data.columns import SearchColumns, margins_of, score_of, search_texts
from ftcluster_common.data.data_files import Row, short
from ftcluster_common.tasks.embed import SentenceSimilarity, embedded_column, search_columns
from ftcluster_train.engine.data.sources import Rows, columns_of, find_columns, read_rows
from ftcluster_train.engine.data.token_samples import Sample, SampleWriter
from ftcluster_train.errors import TrainError


def rows_of(rows: Rows, columns: SearchColumns, split: str) -> Iterator[list[str]]:
    """Yield the texts of each row."""
    return (texts for _, texts in read_rows(rows, split, lambda row: search_texts(row, columns)))


def scores_of(rows: Rows, columns: SearchColumns, split: str) -> Iterator[float]:
    """Yield the score of each row, which is a pair of texts."""
    return (score for _, score in read_rows(rows, split, lambda row: score_of(row, columns)))


def margins_in(rows: Rows, columns: SearchColumns, split: str) -> Iterator[list[float]]:
    """Yield, for each row, the teacher's margins of its negatives."""

    def margins(row: Row) -> list[float]:
        return margins_of(row, columns, len(search_texts(row, columns)) - 2)

    return (values for _, values in read_rows(rows, split, margins))


def pair_columns(rows: Rows, options: SentenceSimilarity, split: str) -> SearchColumns:
    """Return the names of the columns that contain queries and texts.

    Raises:
        TrainError: the rows have no such columns.
    """
    return find_columns(rows, split, lambda names: search_columns(options, names))


def texts_of(rows: Rows, options: SentenceSimilarity, split: str) -> Iterator[str]:
    """Yield the single text of each row, for predictions or distillation.

    Raises:
        TrainError: a row has no text.
    """
    column = embedded_column(options, columns_of(rows))
    for number, row in enumerate(rows, start=1):
        text = row.get(column)
        if not isinstance(text, str):
            raise TrainError(
                f"row {number} of {split} has {short(text)} in column {column}, not a text"
            )
        yield text


def texts_in(row: Sample) -> Iterator[list[int]]:
    """Yield the tokens of each text of a sample."""
    ends = accumulate(row["lengths"], initial=0)
    return (row["input_ids"][begin:end] for begin, end in pairwise(ends))


def number_of_text(text: str) -> int:
    """Return a 63-bit integer hash of a text, which is the same on all hosts."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def close_set(writer: SampleWriter, split: str, cut: int, **about: Any) -> int:
    """Close the writer of a set, and return `cut`, its number of truncated texts.

    Raises:
        TrainError: the set has no samples.
    """
    if not len(writer):
        raise TrainError(f"the data have no samples in {split}")
    writer.close(**about, cut=cut)
    return cut
