"""What is wrong with a row of data for a task. Standard library only."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, assert_never

from ftcluster_common.data.columns import (
    answering_columns,
    as_flag,
    classification_columns,
    distilled_columns,
    embedded_column,
    is_incomplete,
    ranked_texts,
    ranking_columns,
    search_columns,
    search_texts,
    text_column,
)
from ftcluster_common.data.conversations import (
    conversation_columns,
    preference_columns,
    read_conversation,
    read_preference,
)
from ftcluster_common.data.data_files import DataError, Row, short
from ftcluster_common.data.numbers import has_decimal_comma, is_decimal
from ftcluster_common.data.source_target import source_and_target, source_target_columns
from ftcluster_common.data.tagged_words import TagCheck, TaggedColumns, read_tagged, tagged_columns
from ftcluster_common.recipe import (
    InstructionTuning,
    LanguageModel,
    Options,
    PreferenceTuning,
    QuestionAnswering,
    SentenceSimilarity,
    Seq2SeqLm,
    TextClassification,
    TextDistillation,
    TextRanking,
    TokenClassification,
)

CheckRow = Callable[[Row], str]  # returns the problem, or ""


def row_check(options: Options, answered: bool, columns: Sequence[str]) -> CheckRow:
    """What checks the rows of a file.

    Args:
        answered: whether the rows need labels or answers; those to predict do not.
        columns: those of the first row.

    Raises:
        DataError: they are not those that the task reads.
    """
    match options:
        case TextClassification():
            return _classification(options, answered, columns)
        case TokenClassification():
            tagged = tagged_columns(options, columns, answered)
            return partial(_tagging_problem, options, tagged, TagCheck())
        case QuestionAnswering():
            return _answering(options, answering_columns(options, answered))
        case LanguageModel():
            return partial(_check_columns, [text_column(options, columns)], [])
        case SentenceSimilarity() if answered and not options.distils:
            return _reads(partial(search_texts, columns=search_columns(options, columns)))
        case SentenceSimilarity():
            return partial(_check_columns, [embedded_column(options, columns)], [])
        case TextRanking():
            pairs = ranking_columns(options, columns, answered)
            return _reads(partial(ranked_texts, columns=pairs))
        case InstructionTuning():
            named = conversation_columns(options, columns)
            template = options.chat_template
            return _reads(partial(read_conversation, columns=named, chat_template=template))
        case PreferenceTuning():
            answers = preference_columns(options, columns)
            template = options.chat_template
            return _reads(partial(read_preference, columns=answers, chat_template=template))
        case Seq2SeqLm():
            both = source_target_columns(options, columns, answered)
            return _reads(partial(source_and_target, columns=both))
        case TextDistillation():
            return partial(_distillation_problem, *distilled_columns(options, columns))
    assert_never(options)


def _reads(read: Callable[[Row], object]) -> CheckRow:
    return partial(_reading_problem, read)


def _reading_problem(read: Callable[[Row], object], row: Row) -> str:
    try:
        read(row)
    except DataError as error:
        return str(error)
    return ""


def _check_columns(texts: Sequence[str], others: Sequence[str], row: Row) -> str:
    missing = [name for name in (*texts, *others) if name not in row]
    if missing:
        return f"no column {', '.join(missing)}; found {', '.join(map(str, row)) or 'none'}"
    for name in texts:
        if not isinstance(row[name], str):
            return f"{name} is {short(row[name])}, not a text"
    return ""


def _classification(
    options: TextClassification, labelled: bool, columns: Sequence[str]
) -> CheckRow:
    texts, labels = classification_columns(options, columns, labelled)
    if not labelled:
        return partial(_check_columns, texts, [])
    return partial(_classification_problem, options, texts, labels, [])


def _classification_problem(
    options: TextClassification, texts: Sequence[str], labels: Sequence[str], kinds: list[bool],
    row: Row,
) -> str:  # fmt: skip
    """The problem of a row; `kinds` has whether the first row's label is a list."""
    if options.skip_incomplete and is_incomplete(row, [*texts, *labels]):
        return ""
    problem = _check_columns(texts, labels, row)
    if problem:
        return problem
    if options.label_columns:
        wrong = [name for name in labels if as_flag(row[name]) is None]
        return f"{wrong[0]} is {short(row[wrong[0]])}, not 0 or 1" if wrong else ""
    [column] = labels
    label = row[column]
    if options.regression:
        comma = "; write its decimal comma as a point" * has_decimal_comma(str(label))
        return "" if is_number(label) else f"{column} is {short(label)}, not a number{comma}"
    kinds[:] = kinds or [isinstance(label, list)]
    if isinstance(label, list) != kinds[0]:
        return f"{column} is {short(label)}: a list of classes in some rows, and not in others"
    for one in label if isinstance(label, list) else [label]:
        if not _is_class(one):
            skippable = not options.skip_incomplete and not isinstance(label, list)
            lacks = (
                ""
                if one or one == 0 or not skippable
                else "; rows without one are left out on request: "
            )
            lacks = lacks and f"{lacks}skip_incomplete=true"
            what = f"{column} is {short(label)}, not a class: a word, or a number (0, 1, ...)"
            return f"{what}{lacks}"
    return ""


def _tagging_problem(
    options: TokenClassification, columns: TaggedColumns, check: TagCheck, row: Row
) -> str:
    try:
        tagged = read_tagged(row, columns, options.tag_names)
    except DataError as error:
        return str(error)
    words = row[columns.tokens] if columns.tokens else []
    return "" if options.repair_tags else check.problem(tagged.tags, lambda n: str(words[n]))


def _distillation_problem(texts: Sequence[str], label: str, row: Row) -> str:
    problem = _check_columns(texts, [], row)
    if not problem and isinstance(row.get(label), list | dict):
        return f"{label} is {short(row[label])}, not a class or nothing"
    return problem


def _is_class(label: Any) -> bool:
    if isinstance(label, bool) or (isinstance(label, str) and label.strip()):
        return True  # the name of a class
    whole = isinstance(label, int) or (isinstance(label, float) and label.is_integer())
    return whole and label >= 0


def is_number(label: Any) -> bool:
    """Whether a label is a number, also as a text."""
    try:
        if isinstance(label, str):
            return is_decimal(label)
        return not isinstance(label, bool) and math.isfinite(float(label))
    except (TypeError, ValueError, OverflowError):
        return False


def _answering(options: QuestionAnswering, columns: Sequence[str]) -> CheckRow:
    if options.answers_column in columns:
        return partial(_answering_problem, options)
    return partial(_check_columns, columns, [])


def _answering_problem(options: QuestionAnswering, row: Row) -> str:
    """The problem of a row whose answers may not be at their places in the context."""
    column = options.answers_column
    problem = _check_columns([options.question_column, options.context_column], [column], row)
    if problem:
        return problem
    answers, context = row[column], row[options.context_column]
    if not isinstance(answers, dict) or not {"text", "answer_start"} <= set(answers):
        return f"{column} is {short(answers)}, not an object with text and answer_start"
    texts, starts = answers["text"], answers["answer_start"]
    if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
        return f"text and answer_start of {column} are not two lists of the same length"
    for text, start in zip(texts, starts, strict=True):
        if not isinstance(text, str) or not isinstance(start, int) or start < 0:
            has = f"{column} has {short(text)} at {short(start)}"
            return f"{has}, not a text at the number of a character"
        found = context[start : start + len(text)]
        if found != text:
            there = f"character {start} of the context, but {short(found)}"
            return f"answer {short(text)} is not at {there}"
    return ""
