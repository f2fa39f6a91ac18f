"""The task token-classification: the tag of each word, such as the entities of a text."""

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

# f1_macro and f1_weighted are for plain tags, such as parts of speech
ENTITY_METRICS = ("precision", "recall", "f1", "accuracy", "f1_macro", "f1_weighted", "loss")
TOKENS = ("tokens", "words")
TAGS = ("ner_tags", "tags", "labels", "ner", "tag")


@dataclass(frozen=True)
class TokenClassification(Adapters):
    """Predicts the tag of each word: the entities of a text (NER), or parts of speech.

    A row has words with their tags, or a text with its entities as spans.

    Attributes:
        tokens_column: column with lists of words. Default: found by its name.
        tags_column: column with lists of tags, as names such as B-PER or as numbers. Default: found
            by its name.
        text_column: column with texts, if no column has words. Default: found by its name.
        spans_column: column with lists of entities, each with start, end (in characters) and label.
            Default: found by its name.
        tag_names: names of tags that are numbers, if the data do not name them.
        repair_tags: True to read invalid tag sequences as conlleval does; otherwise they are an
            error.
        label_all_tokens: True to train on all tokens of a word, False for the first one only.
        max_length: tokens of a window. A longer row has several windows.
        doc_stride: tokens that neighbouring windows of a row share.
        validation_split_percentage: share in percent of the rows that become the validation set if
            the data have none.
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
    """Return the requested columns, or columns with usual names.

    Args:
        labelled: True to return the columns of tags or spans, which are then required.

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
    """The declaration of token classification."""

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
        """Find the columns with words and tags, or with texts and spans."""
        named = tagged_columns(options, columns, answered)._asdict()
        return {use: (name,) for use, name in named.items() if name}

    def row_check(
        self, options: TokenClassification, answered: bool, columns: Sequence[str]
    ) -> CheckRow:
        """Return a check that a row's tags follow the same scheme as all earlier rows."""
        tagged = tagged_columns(options, columns, answered)
        return partial(_tagging_problem, options, tagged, TagCheck())

    def row_form(self, options: TokenClassification, answered: bool) -> str:
        """Describe a row with words and tags, or with a text and spans."""
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
        """Return the metrics of entities and of plain tags."""
        return ENTITY_METRICS

    def contradictions(self, options: TokenClassification) -> Iterator[Contradiction]:
        """Yield errors for windows that are too short, and for two forms of rows at once."""
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
        """Return True: the classes are types of entities, or plain tags."""
        return True

    def labels_of(self, options: TokenClassification, uses: Columns, row: Row) -> list[Any]:
        """Return the types of entities in a row, or its plain tags."""
        tagged_by = TaggedColumns(*("".join(uses.get(use, ())) for use in TaggedColumns._fields))
        try:
            tagged = read_tagged(row, tagged_by, options.tag_names)
        except DataError:  # reading the rows later reports the error
            return []
        kinds = {parts(tag)[1] for tag in tagged.tags if tag != OUTSIDE}
        return sorted(kinds | {kind for kind, _, _ in tagged.spans})
