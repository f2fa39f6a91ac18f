"""Checks of a data folder: each file and line has the form that the task needs."""

import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ftcluster.errors import InputError, raise_together
from ftcluster_common.recipe import CausalLm, QuestionAnswering, Recipe, TextClassification

MAX_PROBLEMS = 10  # of a file

Row = dict[str, Any]
CheckRow = Callable[[Row], str]  # returns the problem, or ""


def check_data_folder(folder: Path, recipe: Recipe) -> None:
    """Make sure that a folder holds data in the form that the recipe's task needs.

    Raises:
        InputError: every problem found, each with file and line.
    """
    if not folder.is_dir():
        raise InputError(f"data folder {folder} does not exist")
    options = recipe.options
    match options:
        case TextClassification():
            splits, form = ("train", *options.validation_splits), _classification_form(options)
            problems = _check_splits(folder, splits, partial(_classification_problem, options))
        case QuestionAnswering():
            splits, form = ("train", "validation"), _answering_form(options)
            problems = _check_splits(folder, splits, partial(_answering_problem, options))
        case CausalLm():
            form = (
                f"it needs *.txt files, or train.jsonl with lines that are JSON objects with "
                f"{options.text_column}"
            )
            problems = _check_texts(folder, partial(_check_columns, [options.text_column], []))
    raise_together(problems, f"data folder {folder} is not valid for this task", form)


def _check_splits(folder: Path, splits: Sequence[str], check: CheckRow) -> list[str]:
    problems: list[str] = []
    for split in splits:
        file = folder / f"{split}.jsonl"
        if file.is_file():
            problems += _check_jsonl(file, check)
        else:
            problems.append(f"{file} does not exist; the folder has: {_listing(folder)}")
    return problems


def _check_texts(folder: Path, check: CheckRow) -> list[str]:
    """A folder of texts; validation.txt or validation.jsonl is optional."""
    texts = sorted(folder.glob("*.txt"))
    rows = [folder / f"{split}.jsonl" for split in ("train", "validation")]
    if rows[0].is_file():
        return [line for file in rows if file.is_file() for line in _check_jsonl(file, check)]
    problems = [problem for file in texts for problem in _check_text(file)]
    if not [file for file in texts if file.stem != "validation"]:
        problems.append(f"no text for training; the folder has: {_listing(folder)}")
    return problems


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


def _check_jsonl(file: Path, check: CheckRow) -> list[str]:
    problems: list[str] = []
    rows = 0
    try:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                rows += 1
                problem = _check_line(line, check)
                if problem:
                    problems.append(f"{file}:{number}: {problem}")
                if len(problems) >= MAX_PROBLEMS:
                    problems.append(
                        f"{file}: more than {MAX_PROBLEMS} problems, the rest is not shown"
                    )
                    break
    except UnicodeDecodeError as error:
        problems.append(f"{file}: not UTF-8: {error.reason} at byte {error.start}")
    except OSError as error:
        problems.append(f"{file}: cannot be read: {error.strerror}")
    if rows == 0 and not problems:
        problems.append(f"{file} is empty")
    return problems


def _check_line(line: str, check: CheckRow) -> str:
    """The problem of a line of JSONL, or ""."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        return f"not valid JSON: {error.msg} at column {error.colno}"
    if not isinstance(row, dict):
        return "not a JSON object"
    return check(row)


def _check_columns(texts: Sequence[str], others: Sequence[str], row: Row) -> str:
    missing = [name for name in (*texts, *others) if name not in row]
    if missing:
        return f"no column {', '.join(missing)}; found {', '.join(map(str, row)) or 'none'}"
    for name in texts:
        if not isinstance(row[name], str):
            return f"{name} is {row[name]!r}, not a text"
    return ""


def _classification_problem(options: TextClassification, row: Row) -> str:
    column = options.label_column
    problem = _check_columns(options.text_columns, [column], row)
    if problem:
        return problem
    label = row[column]
    if options.regression:
        number = isinstance(label, int | float) and not isinstance(label, bool)
        return "" if number and math.isfinite(label) else f"{column} is {label!r}, not a number"
    if isinstance(label, bool) or not isinstance(label, int) or label < 0:
        return f"{column} is {label!r}, not a class number (0, 1, ...)"
    return ""


def _classification_form(options: TextClassification) -> str:
    files = ", ".join(f"{split}.jsonl" for split in ("train", *options.validation_splits))
    label = "a number" if options.regression else "0, 1, ..."
    return (
        f"each line of {files} is one JSON object with {', '.join(options.text_columns)} (text) "
        f"and {options.label_column} ({label})"
    )


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


def _answering_form(options: QuestionAnswering) -> str:
    return (
        "each line of train.jsonl, validation.jsonl is one JSON object with "
        f"{options.question_column}, {options.context_column} (text) and {options.answers_column} "
        '({"text": [...], "answer_start": [...]}, empty lists where there is no answer)'
    )
