"""Checks of data of this machine: each file and line has the form that the task needs."""

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ftcluster.errors import InputError, raise_together
from ftcluster_common.columns import (
    answering_columns,
    classification_columns,
    embedded_column,
    ranked_texts,
    ranking_columns,
    search_columns,
    search_texts,
    text_column,
)
from ftcluster_common.conversations import (
    conversation_columns,
    preference_columns,
    read_conversation,
    read_preference,
)
from ftcluster_common.data_files import (
    PARQUET,
    TABLES,
    TEXT,
    TRAIN,
    VALIDATION,
    DataError,
    Files,
    Row,
    Table,
    files_of,
    texts_of,
)
from ftcluster_common.job import EVALUATE, PREDICT, Purpose
from ftcluster_common.recipe import (
    CausalLm,
    InstructionTuning,
    Options,
    PreferenceTuning,
    QuestionAnswering,
    Recipe,
    SentenceSimilarity,
    TextClassification,
    TextRanking,
)

MAX_PROBLEMS = 10  # of a file
WHOLE = re.compile(r"-?\d+(\.0*)?")
PARQUET_MARK = b"PAR1"  # its first bytes

CheckRow = Callable[[Row], str]  # returns the problem, or ""
MakeCheck = Callable[[Sequence[str]], CheckRow]  # of the columns of a file


def check_data(path: Path, recipe: Recipe, purpose: Purpose = "train") -> None:
    """Make sure that a file or a folder holds data in the form that the recipe's task needs.

    Of files of Parquet, which only hosts can read, the rows are checked there.

    Raises:
        InputError: every problem found, each with file and line.
    """
    if not path.exists():
        raise InputError(f"data {path} does not exist")
    options = recipe.options
    answered = purpose != PREDICT
    make_check: MakeCheck
    match options:
        case TextClassification():
            make_check = partial(_classification, options, answered)
            form = _classification_form(options, answered)
        case QuestionAnswering():
            columns = answering_columns(options, answered)
            make_check = partial(_answering, options, columns)
            form = _answering_form(options, answered)
        case CausalLm():
            make_check = partial(_texts, options)
            form = f"texts in *{TEXT}; or rows with {options.text_column} in {', '.join(TABLES)}"
        case SentenceSimilarity():
            make_check = partial(_search if answered else _embedded, options)
            form = _search_form(options, answered)
        case TextRanking():
            make_check = partial(_ranking, options, answered)
            form = _ranking_form(options, answered)
        case InstructionTuning():
            make_check = partial(_conversations, options)
            form = _conversation_form(options)
        case PreferenceTuning():
            make_check = partial(_preferences, options)
            form = _preference_form(options)
    texts = texts_of(path) if isinstance(options, CausalLm) else {}
    try:
        files = texts or files_of(path)
        problems = [] if files else [_no_data(path, options)]
    except DataError as error:
        files, problems = {}, [str(error)]
    used = used_splits(files, options, purpose) if files else ()
    for split in used:
        if split not in files:
            problems.append(f"{path} has no file for {split}; it has {', '.join(files)}")
        for file in files.get(split, ()):
            problems += _check_text(file) if file.suffix == TEXT else _check_rows(file, make_check)
    if isinstance(options, TextClassification) and answered and not options.regression:
        rows = next((files[split] for split in used if split in files), ())
        problems = problems or _check_scores(rows, options)
    raise_together(problems, f"data {path} are not valid for this task", form)


def _no_data(path: Path, options: Options) -> str:
    kinds = ", ".join((*TABLES, TEXT) if isinstance(options, CausalLm) else TABLES)
    found = f"; the folder has: {_listing(path)}" if path.is_dir() else ""
    return f"{path} has no data in {kinds}{found}"


def used_splits(files: dict[str, Files], options: Options, purpose: Purpose) -> tuple[str, ...]:
    """The sets that the task reads; all others may be as they are."""
    if purpose != "train" and len(files) == 1:
        return tuple(files)
    if purpose == PREDICT:
        return ("test",)
    validation: tuple[str, ...] = (VALIDATION,)
    if isinstance(options, TextClassification):
        validation = options.validation_splits
    if purpose == EVALUATE:
        return validation
    drawn = validation == (VALIDATION,) and VALIDATION not in files
    return (TRAIN,) if drawn else (TRAIN, *validation)


def _check_text(file: Path) -> list[str]:
    try:
        with file.open(encoding="utf-8") as lines:
            blank = True
            for line in lines:
                blank = blank and not line.strip()
    except UnicodeDecodeError as error:
        return [f"{file}: not UTF-8: {error.reason}"]
    except OSError as error:
        return [f"{file}: cannot be read: {error.strerror}"]
    return [f"{file} is empty"] if blank else []


def _listing(folder: Path) -> str:
    return ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"


def _check_rows(file: Path, make_check: MakeCheck) -> list[str]:
    """The problems of a file with rows."""
    if file.suffix == PARQUET:
        with file.open("rb") as content:
            good = content.read(len(PARQUET_MARK)) == PARQUET_MARK
        return [] if good else [f"{file} is not a file of Parquet"]
    problems: list[str] = []
    check: CheckRow | None = None
    try:
        for where, row in Table((file,)).with_places():
            if isinstance(row, DataError):
                problems.append(str(row))
            else:
                try:
                    check = check or make_check(list(row))
                except DataError as error:  # so will all other rows
                    return [*problems, f"{where}: {error}"]
                problem = check(row)
                problems += [f"{where}: {problem}"] if problem else []
            if len(problems) >= MAX_PROBLEMS:
                return [
                    *problems, f"{file}: more than {MAX_PROBLEMS} problems, the rest is not shown"
                ]  # fmt: skip
    except DataError as error:
        problems.append(str(error))
    return problems if problems or check else [f"{file} is empty"]


def _check_columns(texts: Sequence[str], others: Sequence[str], row: Row) -> str:
    missing = [name for name in (*texts, *others) if name not in row]
    if missing:
        return f"no column {', '.join(missing)}; found {', '.join(map(str, row)) or 'none'}"
    for name in texts:
        if not isinstance(row[name], str):
            return f"{name} is {row[name]!r}, not a text"
    return ""


def _texts(options: CausalLm, columns: Sequence[str]) -> CheckRow:
    return partial(_check_columns, [text_column(options, columns)], [])


def _classification(
    options: TextClassification, labelled: bool, columns: Sequence[str]
) -> CheckRow:
    texts, label = classification_columns(options, columns, labelled)
    if not labelled:
        return partial(_check_columns, texts, [])
    return partial(_classification_problem, texts, label, options.regression)


def _classification_problem(texts: Sequence[str], column: str, number: bool, row: Row) -> str:
    problem = _check_columns(texts, [column], row)
    if problem:
        return problem
    label = row[column]
    if number:
        return "" if _is_number(label) else f"{column} is {label!r}, not a number"
    if isinstance(label, bool) or (isinstance(label, str) and label.strip()):
        return ""  # the name of a class
    whole = isinstance(label, int) or (isinstance(label, float) and label.is_integer())
    if not whole or label < 0:
        return f"{column} is {label!r}, not a class: a word, or a number (0, 1, ...)"
    return ""


def _check_scores(files: Files, options: TextClassification) -> list[str]:
    """The first label that is no class, of text files whose labels are all numbers."""
    scores: list[str] = []
    if any(file.suffix == PARQUET for file in files):
        return scores
    for where, row in Table(files).with_places():
        assert not isinstance(row, DataError), "the rows have been checked"
        _, column = classification_columns(options, list(row))
        label = row[column]
        if not _is_number(label):
            return []  # words
        if not WHOLE.fullmatch(str(label).strip()) and not scores:
            scores.append(f"{where}: {column} is {label!r}, a number, not a class")
    return scores


def _is_number(label: Any) -> bool:
    try:
        return not isinstance(label, bool) and math.isfinite(float(label))
    except (TypeError, ValueError):
        return False


def _classification_form(options: TextClassification, labelled: bool) -> str:
    kind = "a number" if options.regression else "a word, or 0, 1, ...; scores: regression=true"
    label = f" and {options.label_column} ({kind})" if labelled else ""
    texts = ", ".join(options.text_columns) or "one or two columns of text"
    return f"each row has {texts}{label}"


def _reading_problem(read: Callable[[Row], object], row: Row) -> str:
    try:
        read(row)
    except DataError as error:
        return str(error)
    return ""


def _search(options: SentenceSimilarity, columns: Sequence[str]) -> CheckRow:
    return partial(
        _reading_problem, partial(search_texts, columns=search_columns(options, columns))
    )


def _ranking(options: TextRanking, labelled: bool, columns: Sequence[str]) -> CheckRow:
    found = ranking_columns(options, columns, labelled)
    return partial(_reading_problem, partial(ranked_texts, columns=found))


def _ranking_form(options: TextRanking, labelled: bool) -> str:
    texts = f"{options.query_column or 'query'}, {options.text_column or 'text'}"
    if not labelled:
        return f"each row has {texts}"
    return (
        f"each row has {texts} and either {options.label_column} (from 0 to 1) or negatives (texts "
        "that do not belong to the query)"
    )


def _conversations(options: InstructionTuning, columns: Sequence[str]) -> CheckRow:
    found = conversation_columns(options, columns)
    read = partial(read_conversation, columns=found, chat_template=options.chat_template)
    return partial(_reading_problem, read)


def _conversation_form(options: InstructionTuning) -> str:
    prompt, completion = (
        options.prompt_column or "prompt",
        options.completion_column or "completion",
    )
    if not options.chat_template:
        return f"each row has {prompt} and {completion} (text)"
    return (
        f"each row has {options.messages_column or 'messages'} (a list of objects with role and "
        f"content, at least one of the role assistant), or {prompt} and {completion}"
    )


def _preferences(options: PreferenceTuning, columns: Sequence[str]) -> CheckRow:
    found = preference_columns(options, columns)
    read = partial(read_preference, columns=found, chat_template=options.chat_template)
    return partial(_reading_problem, read)


def _preference_form(options: PreferenceTuning) -> str:
    prompt, answers = (
        options.prompt_column or "prompt",
        f"{options.chosen_column} and {options.rejected_column}",
    )
    if not options.chat_template:
        return f"each row has {prompt}, {answers} (texts)"
    return (
        f"each row has {prompt}, {answers} (texts or lists of messages), or only {answers} (lists "
        "of messages that begin alike)"
    )


def _embedded(options: SentenceSimilarity, columns: Sequence[str]) -> CheckRow:
    return partial(_check_columns, [embedded_column(options, columns)], [])


def _search_form(options: SentenceSimilarity, answered: bool) -> str:
    if not answered:
        return f"each row has {options.query_column or 'a column of text'}"
    return (
        f"each row has {options.query_column or 'query'}, {options.positive_column or 'positive'} "
        "(the text that belongs to it) and, if there are such, negatives (texts that do not)"
    )


def _answering(
    options: QuestionAnswering, columns: Sequence[str], _found: Sequence[str]
) -> CheckRow:
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
        return f"{column} is {answers!r}, not an object with text and answer_start"
    texts, starts = answers["text"], answers["answer_start"]
    if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
        return f"text and answer_start of {column} are not two lists of the same length"
    for text, start in zip(texts, starts, strict=True):
        if not isinstance(text, str) or not isinstance(start, int) or start < 0:
            return f"{column} has {text!r} at {start!r}, not a text at the number of a character"
        found = context[start : start + len(text)]
        if found != text:
            return f"answer {text!r} is not at character {start} of the context, but {found!r}"
    return ""


def _answering_form(options: QuestionAnswering, answered: bool) -> str:
    answers = (
        f" and {options.answers_column} "
        '({"text": [...], "answer_start": [...]}, empty lists where there is no answer)'
    )
    texts = f"{options.question_column}, {options.context_column} (text)"
    return f"each row has {texts}{answers if answered else ''}"
