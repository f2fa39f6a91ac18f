"""The columns of data that a task reads: those that are asked for, or found by their names."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

from ftcluster_common.data.data_files import DataError, Row, short
from ftcluster_common.data.numbers import is_decimal
from ftcluster_common.recipe import (
    SCORE_LOSSES,
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
      for text in ("positive", "document", "passage", "context", "text", "answer",
                   "documents", "passages", "docs", "texts")),
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
        label: the column of whether the two belong together, or how alike they are; "" where
            nothing says so.
        loss: what is learned of the label, if that is a score.
    """

    query: str
    positive: str
    negatives: tuple[str, ...]
    label: str = ""
    loss: str = ""


def search_columns(options: SentenceSimilarity, columns: Sequence[str]) -> SearchColumns:
    """The columns with queries and texts.

    Raises:
        DataError: there are none such; has the columns and how they are named in a recipe.
    """
    query, positive = _find_search(options.query_column, options.positive_column, columns)
    scored = options.loss if options.loss in SCORE_LOSSES else ""
    negatives = options.negative_columns or tuple(filter(NEGATIVE.fullmatch, columns))
    negatives = () if scored else negatives
    names = {name.lower(): name for name in columns}
    read = (query, positive, *negatives)
    known = (names[name] for name in BELONGING if name in names and names[name] not in read)
    label = options.label_column or next(known, "")
    missing = [name for name in (*read, label) if name and name not in columns]
    if not query or not positive or missing or (scored and not label):
        what = f"no column {', '.join(missing)}" if missing else "no columns known for pairs"
        named = f"query_column={query or 'NAME'} positive_column={positive or 'NAME'}"
        if query and positive and scored and not missing:
            what, named = "no column known for scores", "label_column=NAME"
        raise DataError(f"{what}; found {', '.join(columns) or 'none'}; name them: {named}")
    return SearchColumns(query, positive, negatives, label, scored)


def with_loss(options: SentenceSimilarity, rows: Iterable[Row]) -> SentenceSimilarity:
    """The options with the loss where it is auto, as the first rows tell.

    >>> row = {"sentence1": "a", "sentence2": "b", "score": 3.8}
    >>> with_loss(SentenceSimilarity(), [row]).loss
    'cosent'
    >>> with_loss(SentenceSimilarity(), [{**row, "score": 1}]).loss
    'ranking'
    """
    if options.loss != "auto":
        return options
    first = list(islice(rows, LOOKED_AT))
    try:
        found = search_columns(options, list(first[0]) if first else [])
    except DataError:  # who reads the rows says more of it
        return options
    scores = [_number(row.get(found.label)) for row in first] if found.label else []
    scored = not found.negatives and any(score != 1 for score in scores)
    return replace(options, loss="cosent" if scored and None not in scores else "ranking")


def _number(cell: Any) -> float | None:
    """A finite number, also as a text or as true and false; None where it is none."""
    try:
        value = FLAGS.get(str(cell).strip().lower(), cell)
        if isinstance(value, str) and not is_decimal(value):
            return None
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


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
        any_number: whether a label may be any number, and not only one from 0 to 1.
    """

    search: SearchColumns
    label: str
    any_number: bool = False


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
        return RankingColumns(
            SearchColumns(query, text, negatives), label, options.loss == "listnet"
        )
    what = f"no column {', '.join(missing)}" if missing else "no columns known for pairs"
    if query and text and not missing:
        what = f"neither a column {options.label_column} nor one of negatives"
        named += " label_column=NAME, or negative_columns=NAME"
    raise DataError(f"{what}; found {', '.join(columns) or 'none'}; name them: {named}")


def ranked_texts(row: Row, columns: RankingColumns) -> tuple[str, list[tuple[str, float]]]:
    """A row's query, and its texts with their labels.

    Raises:
        DataError: a column is missing, is not a text or a label, or is empty; says which one.
    """
    texts, labels = row.get(columns.search.positive), row.get(columns.label)
    if columns.label and isinstance(texts, list):
        if not isinstance(labels, list) or len(labels) != len(texts) or not texts:
            raise DataError(
                f"{columns.search.positive} has {len(texts)} texts, and {columns.label} is "
                f"{short(labels)}, not a list with the label of each"
            )
        pair = (columns.search.positive, columns.label)
        each = zip(texts, labels, strict=True)
        found = [
            ranked_texts({**row, **dict(zip(pair, one, strict=True))}, columns) for one in each
        ]
        return found[0][0], [text for _, [text] in found]
    query, text, *negatives = search_texts(row, columns.search)
    if not columns.label:
        return query, [(text, 1.0), *((negative, 0.0) for negative in negatives)]
    if columns.label not in row:
        raise DataError(f"no column {columns.label}; found {', '.join(map(str, row))}")
    number = _number(row[columns.label])
    if number is None or not (columns.any_number or 0 <= number <= 1):
        limits = "" if columns.any_number else " from 0 to 1"
        raise DataError(f"{columns.label} is {short(row[columns.label])}, not a number{limits}")
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
    label = row.get(columns.label)
    if columns.loss:
        score_of(row, columns)
    elif columns.label and str(label).lower() not in TOGETHER:
        raise DataError(
            f"{columns.label} is {short(label)}, and a query is learned with the text that belongs "
            "to it (1); leave out other rows or the column, or learn scores with loss=cosent"
        )
    return [text for _, text in texts]


def score_of(row: Row, columns: SearchColumns) -> float:
    """The score of a row's pair.

    Raises:
        DataError: it has none that the loss can learn.
    """
    score = _number(row.get(columns.label))
    if score is None:
        raise DataError(f"{columns.label} is {short(row.get(columns.label))}, not a number")
    if columns.loss == "cosine" and not -1 <= score <= 1:
        raise DataError(
            f"{columns.label} is {score:g}, and a cosine is from -1 to 1: divide the scores, or "
            "learn their order, with loss=cosent"
        )
    return score


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
