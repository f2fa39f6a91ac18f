"""The columns of data that a task reads: those that are asked for, or found by their names."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

from ftcluster_common.data_files import DataError, Row, short
from ftcluster_common.recipe import (
    LanguageModel,
    QuestionAnswering,
    SentenceSimilarity,
    TextClassification,
    TextDistillation,
    TextRanking,
)

PAIRS = (
    ("sentence1", "sentence2"), ("question1", "question2"), ("premise", "hypothesis"),
    ("text1", "text2"), ("text_a", "text_b"), ("question", "sentence"),
)  # fmt: skip
TEXTS = (
    "text", "sentence", "review", "content", "comment", "tweet", "message", "body", "document",
    "description", "utterance", "query", "question", "title",
)  # fmt: skip
# a query and the text that belongs to it
SEARCHES = (
    *((query, text) for query in ("query", "anchor", "question")
      for text in ("positive", "document", "passage", "context", "text", "answer")),
    *PAIRS, ("sentence", "positive"), ("text", "positive"), ("title", "body"), ("title", "text"),
)  # fmt: skip
# whether two texts belong together
BELONGING = ("label", "labels", "score", "similarity", "similarity_score", "is_duplicate")
TOGETHER = ("1", "1.0", "true")
FLAGS = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}
LOOKED_AT = 100  # rows
NEGATIVE = re.compile(r"(hard_)?neg(ative)?s?[ _-]?\d*", re.IGNORECASE)
LABELS = (
    "label", "labels", "class", "category", "target", "sentiment", "intent", "emotion", "topic",
    "score", "rating", "stars",
)  # fmt: skip


def classification_columns(
    options: TextClassification, columns: Sequence[str], labelled: bool = True
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The columns with the texts and the label, or with a class each.

    Args:
        columns: those of the data.
        labelled: whether the label is needed; if not, there may be none.

    Raises:
        DataError: there are none such; has the columns and how they are named in a recipe.
    """
    texts = options.text_columns or find_texts(columns)
    label = "" if options.label_columns else _named(options.label_column, LABELS, columns)
    wanted = (*texts, *(options.label_columns if labelled else ()))
    missing = [name for name in wanted if name not in columns]
    if not label and labelled and not options.label_columns:
        missing.append(options.label_column)
    if missing or not texts:
        guessed = find_texts(columns) or ("NAME",)
        what = "no column that is known for texts"
        if missing:
            alike = {name.lower(): f" ({name} is one)" for name in columns}
            what = f"no column {', '.join(name + alike.get(name.lower(), '') for name in missing)}"
        raise DataError(
            f"{what}; found {', '.join(columns) or 'none'}; name them: "
            f"text_columns={','.join(guessed)} label_column={label or 'NAME'}"
        )
    return tuple(texts), options.label_columns or ((label,) if label else ())


def distilled_columns(
    options: TextDistillation, columns: Sequence[str]
) -> tuple[tuple[str, ...], str]:
    """The columns with the texts, and the one with the class, "" where there is none.

    Raises:
        DataError: there are no texts, or no column that is asked for.
    """
    named = options.label_column != LABELS[0]
    plain = TextClassification(options.text_columns, options.label_column)
    texts, labels = classification_columns(plain, columns, labelled=named)
    return texts, "".join(labels)


def with_label_columns(options: TextClassification, rows: Iterable[Row]) -> TextClassification:
    """The options with the columns of 0 and 1 that have a class each, as the first rows tell.

    They are as they were where a column with the class is named or known, or where there are not
    three such columns: of two, one may be the class and the other say something else.

    >>> row = {"text": "a b", "toxic": "1", "insult": "0", "threat": 0, "id": "7"}
    >>> with_label_columns(TextClassification(), [row]).label_columns
    ('toxic', 'insult', 'threat')
    """
    first = list(islice(rows, LOOKED_AT))
    columns = list(first[0]) if first else []
    named = options.label_columns or options.label_column != LABELS[0]
    if named or options.regression or _named(LABELS[0], LABELS, columns):
        return options
    texts = options.text_columns or find_texts(columns)
    found = [
        name
        for name in columns
        if name not in texts and all(as_flag(row.get(name)) is not None for row in first)
    ]
    return replace(options, label_columns=tuple(found)) if len(found) > 2 else options


def as_flag(cell: Any) -> bool | None:
    """Whether a cell of a column of 0 and 1 says that a row has the class; None where it is none.

    >>> as_flag("1"), as_flag(0.0), as_flag(False), as_flag("2"), as_flag(None)
    (True, False, False, None, None)
    """
    return FLAGS.get(str(cell).strip().lower())


def is_incomplete(row: Row, columns: Iterable[str]) -> bool:
    """Whether a row lacks a value in one of these columns.

    >>> is_incomplete({"text": " ", "label": "a"}, ["text", "label"])
    True
    """
    return any(
        row.get(name) is None or row[name] != row[name] or not str(row[name]).strip()  # NaN
        for name in columns
    )


def find_texts(columns: Sequence[str]) -> tuple[str, ...]:
    """One or two columns that are known for texts.

    >>> find_texts(["id", "Review", "stars"]), find_texts(["premise", "label", "hypothesis"])
    (('Review',), ('premise', 'hypothesis'))
    """
    names = {name.lower(): name for name in columns}
    pairs = [pair for pair in PAIRS if names.keys() >= {*pair}]
    chosen = pairs[0] if pairs else [name for name in TEXTS if name in names][:1]
    return tuple(names[name] for name in chosen)


def text_column(options: LanguageModel, columns: Sequence[str]) -> str:
    """The column with the text.

    Raises:
        DataError: there is none.
    """
    column = _named(options.text_column, TEXTS, columns)
    if not column:
        raise DataError(
            f"no column {options.text_column}; found {', '.join(columns) or 'none'}; name it: "
            "text_column=NAME"
        )
    return column


class SearchColumns(NamedTuple):
    """The columns of a query, of the text that belongs to it, and of texts that do not.

    Attributes:
        label: the column of whether the two belong together; "" where nothing says so.
    """

    query: str
    positive: str
    negatives: tuple[str, ...]
    label: str = ""


def search_columns(options: SentenceSimilarity, columns: Sequence[str]) -> SearchColumns:
    """The columns with queries and texts.

    Raises:
        DataError: there are none such; has the columns and how they are named in a recipe.
    """
    query, positive = _find_search(options.query_column, options.positive_column, columns)
    negatives = options.negative_columns or tuple(filter(NEGATIVE.fullmatch, columns))
    missing = [name for name in (query, positive, *negatives) if name and name not in columns]
    if not query or not positive or missing:
        what = f"no column {', '.join(missing)}" if missing else "no columns known for pairs"
        raise DataError(
            f"{what}; found {', '.join(columns) or 'none'}; name them: "
            f"query_column={query or 'NAME'} positive_column={positive or 'NAME'}"
        )
    names = {name.lower(): name for name in columns}
    label = next((names[name] for name in BELONGING if name in names), "")
    read = {query, positive, *negatives}
    return SearchColumns(query, positive, negatives, "" if label in read else label)


def _find_search(
    query: str | None, text: str | None, columns: Sequence[str]
) -> tuple[str | None, str | None]:
    """The columns that are wanted, and for those that are None the known ones."""
    names = {name.lower(): name for name in columns}
    for search in SEARCHES:
        present = tuple(names.get(name, "") for name in search)
        if all(present) and query in (None, present[0]) and text in (None, present[1]):
            query, text = present
    return query, text


class RankingColumns(NamedTuple):
    """The columns of a query and a text, and of either a label or texts that do not belong.

    Attributes:
        label: "" where there are negatives.
    """

    search: SearchColumns
    label: str


def ranking_columns(
    options: TextRanking, columns: Sequence[str], labelled: bool = True
) -> RankingColumns:
    """The columns with queries, texts and what is said of them.

    Args:
        labelled: whether a label or negatives are needed; if not, neither is returned.

    Raises:
        DataError: there are none such; has the columns and how they are named in a recipe.
    """
    query, text = _find_search(options.query_column, options.text_column, columns)
    negatives = options.negative_columns or tuple(filter(NEGATIVE.fullmatch, columns))
    if not labelled:
        negatives = ()
    label = "" if negatives or not labelled else _named(options.label_column, LABELS, columns)
    missing = [name for name in (query, text, *negatives) if name and name not in columns]
    named = f"query_column={query or 'NAME'} text_column={text or 'NAME'}"
    if query and text and not missing and (label or negatives or not labelled):
        return RankingColumns(SearchColumns(query, text, negatives), label)
    what = f"no column {', '.join(missing)}" if missing else "no columns known for pairs"
    if query and text and not missing:
        what = f"neither a column {options.label_column} nor one of negatives"
        named += " label_column=NAME, or negative_columns=NAME"
    raise DataError(f"{what}; found {', '.join(columns) or 'none'}; name them: {named}")


def ranked_texts(row: Row, columns: RankingColumns) -> tuple[str, list[tuple[str, float]]]:
    """A row's query, and its texts with their labels, from 0 to 1.

    Raises:
        DataError: a column is missing, is not a text or a label, or is empty; says which one.
    """
    query, text, *negatives = search_texts(row, columns.search)
    if not columns.label:
        return query, [(text, 1.0), *((negative, 0.0) for negative in negatives)]
    if columns.label not in row:
        raise DataError(f"no column {columns.label}; found {', '.join(map(str, row))}")
    label = row[columns.label]
    try:
        number = float(label)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number <= 1:
        raise DataError(f"{columns.label} is {short(label)}, not a number from 0 to 1")
    return query, [(text, number)]


def search_texts(row: Row, columns: SearchColumns) -> list[str]:
    """A row's query, the text that belongs to it, and those that do not.

    A column of negatives has a text, a list of texts, or nothing.

    Raises:
        DataError: a column is missing, is not a text, or is empty, or the label says that query and
            text do not belong together; says which one.
    """
    missing = [name for name in (*columns[:2], *columns.negatives) if name not in row]
    if missing:
        raise DataError(f"no column {', '.join(missing)}; found {', '.join(map(str, row))}")
    texts = [(name, row[name]) for name in columns[:2]]
    for name in columns.negatives:
        cell = row[name]
        if cell not in ("", None):
            texts += [(name, text) for text in (cell if isinstance(cell, list) else [cell])]
    for name, text in texts:
        if not isinstance(text, str):
            raise DataError(f"{name} is {short(text)}, not a text")
        if not text.strip():
            raise DataError(f"{name} is empty")
    if columns.label and str(row.get(columns.label)).lower() not in TOGETHER:
        raise DataError(
            f"{columns.label} is {short(row.get(columns.label))}, and a query is learned with the "
            "text that belongs to it (1); leave out other rows, or the column if it says something "
            "else"
        )
    return [text for _, text in texts]


def embedded_column(options: SentenceSimilarity, columns: Sequence[str]) -> str:
    """The column whose texts get embeddings in a prediction.

    Raises:
        DataError: there is none.
    """
    candidates = ("query", "anchor", *TEXTS)
    column = _named(options.query_column or candidates[0], candidates, columns)
    if not column:
        raise DataError(
            f"no column {options.query_column or 'that is known for texts'}; found "
            f"{', '.join(columns) or 'none'}; name it: query_column=NAME"
        )
    return column


def answering_columns(options: QuestionAnswering, answered: bool = True) -> tuple[str, ...]:
    """The columns with question, context and, if it is needed, the answers."""
    columns = (options.question_column, options.context_column, options.answers_column)
    return columns if answered else columns[:2]


def _named(wanted: str, candidates: Sequence[str], columns: Sequence[str]) -> str:
    """The column that is wanted; if that is the field's default, one that is known; else ""."""
    if wanted in columns or wanted != candidates[0]:
        return wanted if wanted in columns else ""
    names = {name.lower(): name for name in columns}
    return next((names[name] for name in candidates if name in names), "")
