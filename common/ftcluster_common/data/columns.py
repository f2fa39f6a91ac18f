"""Usual names of columns with texts, pairs and labels, and functions that read these columns."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ftcluster_common.data.numbers import as_number, why_no_number
from ftcluster_common.data.rows import DataError, Row, found_columns, short

PAIRS = (
    ("sentence1", "sentence2"), ("question1", "question2"), ("premise", "hypothesis"),
    ("text1", "text2"), ("text_a", "text_b"), ("question", "sentence"),
)  # fmt: skip
TEXTS = (
    "text", "sentence", "review", "content", "comment", "tweet", "message", "body", "document",
    "description", "utterance", "query", "question", "title",
)  # fmt: skip
# usual names of columns with a query and the text that belongs to it
SEARCHES = (
    *((query, text) for query in ("query", "anchor", "question")
      for text in ("positive", "document", "passage", "context", "text", "answer",
                   "documents", "passages", "docs", "texts")),
    *PAIRS, ("sentence", "positive"), ("text", "positive"), ("title", "body"), ("title", "text"),
)  # fmt: skip
TOGETHER = ("1", "1.0", "true")
FLAGS = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}
LOOKED_AT = 100  # number of rows at the start that decide how columns are read
NEGATIVE = re.compile(r"(hard_)?neg(ative)?s?[ _-]?\d*", re.IGNORECASE)
LABELS = (
    "label", "labels", "class", "category", "target", "sentiment", "intent", "emotion", "topic",
    "score", "rating", "stars",
)  # fmt: skip

SPAN_COLUMNS = ("spans", "entities", "labels", "label", "annotations")


def as_flag(cell: Any) -> bool | None:
    """Return True for a cell with 1, False for a cell with 0, None for all other cells.

    >>> as_flag("1"), as_flag(0.0), as_flag(False), as_flag("2"), as_flag(None)
    (True, False, False, None, None)
    """
    return FLAGS.get(str(cell).strip().lower())


def is_incomplete(row: Row, columns: Iterable[str]) -> bool:
    """Return True if a row has no value in one of these columns.

    >>> is_incomplete({"text": " ", "label": "a"}, ["text", "label"])
    True
    """
    return any(
        row.get(name) is None or row[name] != row[name] or not str(row[name]).strip()  # NaN
        for name in columns
    )


def find_texts(columns: Sequence[str]) -> tuple[str, ...]:
    """Return the one or two columns whose names are usual for texts; () if there are none.

    >>> find_texts(["id", "Review", "stars"]), find_texts(["premise", "label", "hypothesis"])
    (('Review',), ('premise', 'hypothesis'))
    """
    names = {name.lower(): name for name in columns}
    pairs = [pair for pair in PAIRS if names.keys() >= {*pair}]
    chosen = pairs[0] if pairs else [name for name in TEXTS if name in names][:1]
    return tuple(names[name] for name in chosen)


class SearchColumns(NamedTuple):
    """The columns with a query, the matching text, and texts that do not match.

    Attributes:
        label: column with a 0/1 label or a similarity score of the pair, or "".
        loss: name of the loss that reads the label as a score, or "".
        margins: column with the margins or the scores of a teacher, or "".
    """

    query: str
    positive: str
    negatives: tuple[str, ...]
    label: str = ""
    loss: str = ""
    margins: str = ""


def number_in(cell: Any) -> float | None:
    """Return a cell's finite number (true is 1, false is 0), or None if there is none."""
    flag = FLAGS.get(str(cell).strip().lower())
    return as_number(cell) if flag is None else float(flag)


def find_search(
    query: str | None, text: str | None, columns: Sequence[str]
) -> tuple[str | None, str | None]:
    """Return the columns with query and text; a column that is None is found by its usual names."""
    names = {name.lower(): name for name in columns}
    for search in SEARCHES:
        present = tuple(names.get(name, "") for name in search)
        if all(present) and query in (None, present[0]) and text in (None, present[1]):
            query, text = present
    return query, text


def search_texts(row: Row, columns: SearchColumns) -> list[str]:
    """Return a row's query, the matching text, and the texts that do not match.

    A cell of negatives contains a text, a list of texts, or nothing.

    Raises:
        DataError: a column is missing, empty or not a string, or the label marks the pair as not
            matching. The message names the column.
    """
    missing = [name for name in (*columns[:2], *columns.negatives) if name not in row]
    if missing:
        raise DataError(f"no column {', '.join(missing)}; {found_columns(row)}")
    texts = [(name, row[name]) for name in columns[:2]]
    for name in columns.negatives:
        cell = row[name]
        if cell not in ("", None):
            texts += [(name, text) for text in (cell if isinstance(cell, list) else [cell])]
    for name, text in texts:
        if not isinstance(text, str):
            raise DataError(f"column {name} must be a string, got {short(text)}")
        if not text.strip():
            raise DataError(f"column {name} is empty")
    label = row.get(columns.label)
    if columns.loss:
        score_of(row, columns)
    elif columns.label and str(label).lower() not in TOGETHER:
        raise DataError(
            f"column {columns.label} is {short(label)}, but each query needs a matching text "
            "(label 1): remove the rows with other labels, remove the column, or train on scores "
            "with loss=cosent"
        )
    if columns.margins and columns.negatives:
        margins_of(row, columns, len(texts) - 2)
    return [text for _, text in texts]


def margins_of(row: Row, columns: SearchColumns, negatives: int) -> list[float]:
    """Return the margin of each negative: the positive text's score minus the negative's score.

    A cell has the margins, or the scores of the positive text and of each negative. A single
    number is the margin of a single negative.

    Args:
        negatives: number of the row's texts that do not match.

    Raises:
        DataError: there are no negatives, or the cell has other values.
    """
    cell = row.get(columns.margins)
    if not negatives:
        raise DataError("there is no negative, and the loss compares texts with a negative")
    numbers = [number_in(value) for value in (cell if isinstance(cell, list) else [cell])]
    found = [number for number in numbers if number is not None]
    if len(found) != len(numbers) or len(found) not in (negatives, negatives + 1):
        raise DataError(
            f"{columns.margins} is {short(cell)}, not the margins of the negatives ({negatives}) "
            f"or the scores of all texts ({negatives + 1}, the positive text first)"
        )
    if len(found) == negatives:
        return found
    return [found[0] - score for score in found[1:]]


def score_of(row: Row, columns: SearchColumns) -> float:
    """Return the score of a row's pair.

    Raises:
        DataError: the cell is not a score that the loss accepts.
    """
    score = number_in(row.get(columns.label))
    if score is None:
        label = row.get(columns.label)
        raise DataError(f"column {columns.label} is {short(label)}, {why_no_number(label)}")
    if columns.loss == "cosine" and not -1 <= score <= 1:
        raise DataError(
            f"column {columns.label} is {score:g}, but loss=cosine needs scores from -1 to 1: "
            "scale the scores, or set loss=cosent to learn only their order"
        )
    if columns.loss == "contrastive" and not 0 <= score <= 1:
        raise DataError(
            f"column {columns.label} is {score:g}, but loss=contrastive needs 1 for pairs that "
            "match and 0 for other pairs; to learn the order of scores, set loss=cosent"
        )
    if columns.loss == "online_contrastive" and score not in (0, 1):
        raise DataError(
            f"column {columns.label} is {score:g}, but loss=online_contrastive needs 1 for pairs "
            "that match and 0 for other pairs; to learn the order of scores, set loss=cosent"
        )
    return score


def named_column(wanted: str, candidates: Sequence[str], columns: Sequence[str]) -> str:
    """Return the wanted column; "" if it is missing.

    If the wanted column is the default name, a column with another usual name may replace it.
    """
    if wanted in columns or wanted != candidates[0]:
        return wanted if wanted in columns else ""
    names = {name.lower(): name for name in columns}
    return next((names[name] for name in candidates if name in names), "")
