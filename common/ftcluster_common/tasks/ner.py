"""The task token-classification: predicting a tag for each word, as in NER."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ftcluster_common.data.cells import read_cell
from ftcluster_common.data.column_uses import Columns
from ftcluster_common.data.columns import SPAN_COLUMNS, TEXTS
from ftcluster_common.data.data_files import CONLL, DataError, Row, found_columns
from ftcluster_common.data.row_checks import CheckRow
from ftcluster_common.data.tagged_words import OUTSIDE, TagCheck, TaggedColumns, parts, read_tagged
from ftcluster_common.limits import limited
from ftcluster_common.tasks.spec import SPECIAL_TOKENS, Adapters, Contradiction, TaskSpec

# f1_macro and f1_weighted are metrics for plain tags, such as parts of speech
ENTITY_METRICS = ("precision", "recall", "f1", "accuracy", "f1_macro", "f1_weighted", "loss")
TOKENS = ("tokens", "words")
TAGS = ("ner_tags", "tags", "labels", "ner", "tag")


@dataclass(frozen=True)
class TokenClassification(Adapters):
    """Predicts a tag for each word, such as an entity (NER) or a part of speech.

    A row contains words and their tags, or a text and its entities as spans.

    Attributes:
        tokens_column: column with lists of words. Default: detected from the column names.
        tags_column: column with lists of tags, which are names such as B-PER, or numbers. Default:
            detected from the column names.
        text_column: column with texts, used if no column contains words. Default: detected from the
            column names.
        spans_column: column with lists of entities. Each entity has start and end (character
            positions) and label. Default: detected from the column names.
        tag_names: names of the tags, if the tags are numbers and the data do not contain their
            names.
        repair_tags: True to interpret invalid tag sequences as conlleval does; otherwise, they are
            an error.
        label_all_tokens: True to train on all tokens of a word, False to train only on its first
            token.
        max_length: number of tokens in a window. A longer row is split into several windows.
        doc_stride: number of tokens that consecutive windows of a row share.
        validation_split_percentage: percentage of the rows to use as the validation set if the data
            have none.
    """

    tokens_column: str | None = None
    tags_column: str | None = None
    text_column: str | None = None
    spans_column: str | None = None
    tag_names: tuple[str, ...] = ()
    repair_tags: bool = False
    label_all_tokens: bool = False
    max_length: int = limited(256, at_least=8)
    doc_stride: int = limited(64, at_least=0)
    validation_split_percentage: float = limited(10.0, at_least=0.001, at_most=50)


def tagged_columns(
    options: TokenClassification, columns: Sequence[str], labelled: bool = True
) -> TaggedColumns:
    """Return the columns that the options name, or columns with usual names.

    Args:
        labelled: True to require and return a column with tags or spans too.

    Raises:
        DataError: there are no such columns. The message lists the columns and shows how to name
            them in a recipe.
    """
    names = {name.lower(): name for name in columns}

    def find(wanted: str | None, known: Iterable[str]) -> str:
        if wanted is not None and (wanted in columns or labelled):
            return wanted if wanted in columns else ""
        return next((names[name] for name in known if name in names), "")

    tokens, text = find(options.tokens_column, TOKENS), find(options.text_column, TEXTS)
    tags, spans = find(options.tags_column, TAGS), find(options.spans_column, SPAN_COLUMNS)
    of_words, of_text = TaggedColumns(tokens, "", tags), TaggedColumns("", text, spans)
    prefers_text = options.text_column or options.spans_column
    for candidate in (of_text, of_words) if prefers_text else (of_words, of_text):
        if (candidate.tokens or candidate.text) and (candidate.label or not labelled):
            return candidate if labelled else candidate._replace(label="")
    if tokens and len(columns) == 1:
        raise DataError(f"{tokens} alone, and no tags: each word needs one, as in 'Paris B-LOC'")
    have = f"{found_columns(columns)}; name the columns: "
    raise DataError(
        f"no columns of words and their tags, or of a text and its spans; {have}"
        "tokens_column=NAME tags_column=NAME, or text_column=NAME spans_column=NAME"
    )


def _tagging_problem(
    options: TokenClassification, columns: TaggedColumns, check: TagCheck, row: Row
) -> str:
    try:
        tagged = read_tagged(row, columns, options.tag_names)
    except DataError as error:
        return str(error)
    words = read_cell(row[columns.tokens]) if columns.tokens else []
    return "" if options.repair_tags else check.problem(tagged.tags, lambda n: str(words[n]))


class TokenClassificationSpec(TaskSpec[TokenClassification]):
    """The declaration of the task token-classification."""

    name = "token-classification"
    fields = TokenClassification
    recipe = "ner"
    exported_as = "TokenClassification"
    adapter_type = "TOKEN_CLS"
    model_recipes = {"ForTokenClassification": ("ner",)}
    file_kinds = (CONLL,)

    def columns(
        self, options: TokenClassification, columns: Sequence[str], answered: bool
    ) -> Columns:
        """Return the columns with words and tags, or with texts and spans."""
        named = tagged_columns(options, columns, answered)._asdict()
        return {use: (name,) for use, name in named.items() if name}

    def row_check(
        self, options: TokenClassification, answered: bool, columns: Sequence[str]
    ) -> CheckRow:
        """Return a check that the tags of all rows follow the same scheme."""
        tagged = tagged_columns(options, columns, answered)
        return partial(_tagging_problem, options, tagged, TagCheck())

    def row_form(self, options: TokenClassification, answered: bool) -> str:
        """Describe a row that contains words and tags, or a text and spans."""
        tokens, text = options.tokens_column or "tokens", options.text_column or "text"
        tags, spans = options.tags_column or "tags", options.spans_column or "spans"
        if not answered:
            return f"each row has {tokens} (a list of words), or {text}"
        return (
            f"a file in the form of CoNLL; or each row has {tokens} (a list of words) and "
            f"{tags} (a list as long), or {text} and {spans} (a list of objects with start, "
            "end and label)"
        )

    def has_references(self, options: TokenClassification) -> bool:
        """Return True."""
        return True

    def metric_names(self, options: TokenClassification) -> tuple[str, ...]:
        """Return the names of the metrics for entities and for plain tags."""
        return ENTITY_METRICS

    def contradictions(self, options: TokenClassification) -> Iterator[Contradiction]:
        """Yield errors for windows that are too short, and for fields that mix two row formats."""
        if options.max_length <= options.doc_stride + SPECIAL_TOKENS:
            yield (
                "doc_stride",
                f"windows of {options.max_length} tokens, {SPECIAL_TOKENS} of them special ones, "
                f"cannot share {options.doc_stride}; use a quarter: {options.max_length // 4}",
            )
        both = [name for name in ("tokens_column", "text_column") if getattr(options, name)]
        if len(both) > 1:
            yield "text_column", "rows have either words (tokens_column) or a text"

    def has_classes(self, options: TokenClassification) -> bool:
        """Return True, because entity types and plain tags are classes."""
        return True

    def labels_of(self, options: TokenClassification, uses: Columns, row: Row) -> list[Any]:
        """Return the entity types in a row, or its plain tags."""
        tagged_by = TaggedColumns(*("".join(uses.get(use, ())) for use in TaggedColumns._fields))
        try:
            tagged = read_tagged(row, tagged_by, options.tag_names)
        except DataError:  # the error is reported when the rows are read
            return []
        kinds = {parts(tag)[1] for tag in tagged.tags if tag != OUTSIDE}
        return sorted(kinds | {kind for kind, _, _ in tagged.spans})
