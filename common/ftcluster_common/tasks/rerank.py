"""The task text-ranking: training cross-encoders that score how well a text answers a query."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

from ftcluster_common.data.column_uses import Columns
from ftcluster_common.data.columns import (
    LABELS,
    NEGATIVE,
    SearchColumns,
    find_search,
    named_column,
    number_in,
    search_texts,
)
from ftcluster_common.data.data_files import DataError, Row, found_columns, short
from ftcluster_common.data.numbers import why_no_number
from ftcluster_common.data.row_checks import CheckRow, check_by_reading
from ftcluster_common.limits import limited
from ftcluster_common.tasks.spec import RETRIEVAL_METRICS, Adapters, TaskSpec

LIST_LOSSES = ("listnet", "margin_mse")  # losses over all texts of a row


@dataclass(frozen=True)
class TextRanking(Adapters):
    """Scores how well a text answers a query; the model reads both together (a cross-encoder).

    A row contains a query and one of the following: a text and its label; a list of texts and a
    list of their labels; a text that matches the query and texts that do not.

    Attributes:
        query_column: column with queries. Default: detected from the column names.
        text_column: column with one text or a list of texts; if there are negatives, the column
            with the text that matches the query. Default: detected from the column names.
        label_column: column with the label of a text: 1 if the text matches the query, 0 if it does
            not, or a number between 0 and 1. For listnet and margin_mse, labels can be any numbers,
            such as the scores of a teacher.
        negative_columns: columns with texts, or lists of texts, that do not match the query; they
            replace labels. Default: all columns named negative, negatives, negative_1 and so on.
        loss: loss function. binary_cross_entropy uses each pair on its own. listnet and margin_mse
            use all texts of a row: listnet compares the distribution of their scores, and
            margin_mse compares the differences between the score of the first text and the scores
            of the others.
        max_length: maximum number of tokens of a query and its text together; longer pairs are
            truncated.
        validation_split_percentage: percentage of the queries to use as the validation set if the
            data have none.
    """

    query_column: str | None = None
    text_column: str | None = None
    label_column: str = "label"
    negative_columns: tuple[str, ...] = ()
    loss: Literal["binary_cross_entropy", "listnet", "margin_mse"] = "binary_cross_entropy"
    max_length: int = limited(256, at_least=8)
    validation_split_percentage: float = limited(10.0, at_least=0.001, at_most=50)


class RankingColumns(NamedTuple):
    """The columns with queries and texts, and with labels or negatives.

    Attributes:
        label: column with the label; "" if the data contain negatives instead.
        any_number: True if labels may be any numbers, False if they must be between 0 and 1.
    """

    search: SearchColumns
    label: str
    any_number: bool = False


def ranking_columns(
    options: TextRanking, columns: Sequence[str], labelled: bool = True
) -> RankingColumns:
    """Return the columns with queries, texts, and labels or negatives.

    Args:
        labelled: True to require and return the columns with labels or negatives too.

    Raises:
        DataError: there are no such columns. The message lists the columns and shows how to name
            them in a recipe.
    """
    query, text = find_search(options.query_column, options.text_column, columns)
    negatives = options.negative_columns or tuple(filter(NEGATIVE.fullmatch, columns))
    if not labelled:
        negatives = ()
    label = "" if negatives or not labelled else named_column(options.label_column, LABELS, columns)
    missing = [name for name in (query, text, *negatives) if name and name not in columns]
    named = f"query_column={query or 'NAME'} text_column={text or 'NAME'}"
    if query and text and not missing and (label or negatives or not labelled):
        return RankingColumns(
            SearchColumns(query, text, negatives), label, options.loss in LIST_LOSSES
        )
    what = f"no column {', '.join(missing)}" if missing else "no usual names for pairs"
    if query and text and not missing:
        what = f"neither a column {options.label_column} nor one of negatives"
        named += " label_column=NAME, or negative_columns=NAME"
    raise DataError(f"{what}; {found_columns(columns)}; name the columns: {named}")


def ranked_texts(row: Row, columns: RankingColumns) -> tuple[str, list[tuple[str, float]]]:
    """Return a row's query, and its texts with their labels.

    Raises:
        DataError: a column is missing or empty, or contains no text or label. The message names the
            column.
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
        ranked = [
            ranked_texts({**row, **dict(zip(pair, values, strict=True))}, columns)
            for values in each
        ]
        return ranked[0][0], [text for _, [text] in ranked]
    query, text, *negatives = search_texts(row, columns.search)
    if not columns.label:
        return query, [(text, 1.0), *((negative, 0.0) for negative in negatives)]
    if columns.label not in row:
        raise DataError(f"no column {columns.label}; {found_columns(row)}")
    number = number_in(row[columns.label])
    if number is None or not (columns.any_number or 0 <= number <= 1):
        why = why_no_number(row[columns.label]) if number is None else "not a number from 0 to 1"
        raise DataError(f"{columns.label} is {short(row[columns.label])}, {why}")
    return query, [(text, number)]


class TextRankingSpec(TaskSpec[TextRanking]):
    """The declaration of the task text-ranking."""

    name = "text-ranking"
    fields = TextRanking
    recipe = "rerank"
    exported_as = "SequenceClassification"
    reads_pairs = True
    is_cross_encoder = True
    model_recipes = {"ForSequenceClassification": ("rerank",)}
    scaled_by = {"loss": ("loss",)}
    base_settings = {"num_labels": 1, "problem_type": None}
    adapter_type = "SEQ_CLS"

    def columns(self, options: TextRanking, columns: Sequence[str], answered: bool) -> Columns:
        """Return the columns with queries, texts, and labels or negatives."""
        (query, text, negatives, *_), label, _ = ranking_columns(options, columns, answered)
        uses = {"query": (query,), "text": (text,), "negative": negatives}
        return {**uses, "label": (label,) if label else ()}

    def row_check(self, options: TextRanking, answered: bool, columns: Sequence[str]) -> CheckRow:
        """Return a check that a row's texts and labels can be read."""
        pairs = ranking_columns(options, columns, answered)
        return check_by_reading(partial(ranked_texts, columns=pairs))

    def row_form(self, options: TextRanking, answered: bool) -> str:
        """Describe a row that contains a query, a text, and a label or negatives."""
        texts = f"{options.query_column or 'query'}, {options.text_column or 'text'}"
        label = (
            f" and either {options.label_column} (from 0 to 1) or negatives (texts that do not "
            "belong to the query)"
        )
        return f"each row has {texts}{label if answered else ''}"

    def has_references(self, options: TextRanking) -> bool:
        """Return True."""
        return True

    def metric_names(self, options: TextRanking) -> tuple[str, ...]:
        """Return the names of the metrics for rankings and for single pairs."""
        return (*RETRIEVAL_METRICS, "accuracy", "loss")

    def smooths_labels(self, options: TextRanking) -> bool:
        """Return False, because labels are numbers."""
        return False
