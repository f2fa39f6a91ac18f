"""Check local data: each file and each line must have the format that the task needs."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from ftcluster.errors import InputError, raise_together
from ftcluster_common.data.compressed import open_text, unpack_hint
from ftcluster_common.data.data_files import (
    PARQUET,
    TABLES,
    TEST,
    TEXT,
    TRAIN,
    VALIDATION,
    DataError,
    Files,
    Row,
    Table,
    files_of,
    found_columns,
    kind_of,
    read_on_hosts,
    texts_of,
)
from ftcluster_common.data.row_checks import CheckRow
from ftcluster_common.data.saved_datasets import ARROW
from ftcluster_common.protocol.job import EVALUATE, PREDICT, Purpose
from ftcluster_common.recipe import Recipe
from ftcluster_common.tasks.registry import spec_of
from ftcluster_common.tasks.spec import Options

MAX_PROBLEMS = 10  # maximum number of problems to show per file
# first bytes of Parquet files, and of Arrow files with and without a footer
MARKS = {PARQUET: (b"PAR1",), ARROW: (b"ARRO", b"\xff\xff\xff\xff")}
MARK_BYTES = 4

MakeCheck = Callable[[Sequence[str]], CheckRow]  # returns a row check for the columns of a file


def check_data(path: Path, recipe: Recipe, purpose: Purpose = "train") -> None:
    """Check that a file or a folder contains data in the format that the recipe's task needs.

    Only hosts can read Parquet and Arrow files, so the hosts check their rows.

    Raises:
        InputError: the data have problems; the message lists each problem with its file and line.
    """
    if not path.exists():
        raise InputError(
            f"data {path} does not exist on this machine",
            "pass an existing file or folder with --data, or a data set on the Hugging Face Hub as "
            "OWNER/NAME",
        )
    options = recipe.options
    answered = purpose != PREDICT
    form = recipe.spec.row_form(options, answered)
    texts = texts_of(path) if TEXT in recipe.spec.file_kinds else {}
    try:
        files = texts or files_of(path)
        problems = [] if files else [_no_data(path, recipe.spec.file_kinds)]
    except DataError as error:
        files, problems = {}, [str(error)]
    used = used_splits(files, options, purpose, recipe.has_test) if files else ()
    options = options_for(files, options, purpose)
    if recipe.folds is not None and purpose == "train" and VALIDATION in files:
        problems.append(
            f"{files[VALIDATION][0]}: with folds, the validation sets are taken from the training "
            "rows, so there can be no validation file; move its rows to the training set, name the "
            "file test, or remove folds"
        )
    for split in used:
        make_check: MakeCheck = partial(recipe.spec.row_check, options, answered)
        if purpose == "train":
            make_check = _with_split_columns(make_check, recipe, split)
        if split not in files:
            problems.append(f"{path} has no file for {split}, only for {', '.join(files)}")
        for file in files.get(split, ()):
            problems += _check_text(file) if texts else _check_rows(file, make_check, answered)
    if answered and not problems:
        rows = next((files[split] for split in used if split in files), ())
        problems = recipe.spec.file_problems(options, rows, purpose == "train")
    raise_together(problems, f"{path} does not fit the task {recipe.task}", form)


def options_for(files: Mapping[str, Files], options: Options, purpose: Purpose) -> Options:
    """Return the task's fields. The first rows determine fields that the recipe does not set."""
    if purpose == PREDICT or not files:
        return options
    split = next((name for name in used_splits(files, options, purpose) if name in files), "")
    readable = tuple(file for file in files.get(split, ()) if not read_on_hosts(file))
    rows = (row for _, row in Table(readable).with_places() if not isinstance(row, DataError))
    try:
        decided: Options = spec_of(options).with_rows(options, rows)
    except DataError:  # `_check_rows` reports the details
        return options
    return decided


def _no_data(path: Path, file_kinds: Sequence[str]) -> str:
    kinds = ", ".join((*TABLES, *file_kinds))
    listed = f"; the folder contains: {_listing(path)}" if path.is_dir() else ""
    hint = unpack_hint(path) or (path.is_dir() and _archive_hint(path)) or ""
    return f"no data found in {path}; supported formats: {kinds}{listed}{hint and '; '}{hint}"


def _archive_hint(folder: Path) -> str:
    """Return the command that unpacks the first archive in a folder, or ""."""
    return next(filter(None, map(unpack_hint, sorted(folder.iterdir()))), "")


def _with_split_columns(make_check: MakeCheck, recipe: Recipe, split: str) -> MakeCheck:
    """Return `make_check`, extended by checks of the columns that decide how rows are split."""
    groups, strata = recipe.group_column, recipe.stratify_column if split == TRAIN else None
    fields = {"group_column": groups, "stratify_column": strata}
    wanted = {name: column for name, column in fields.items() if column is not None}
    may_be_empty = recipe.spec.skips_incomplete(recipe.options)

    def make(columns: Sequence[str]) -> CheckRow:
        for name, column in wanted.items():
            if column not in columns:
                raise DataError(
                    f"no column {column}; {found_columns(columns)}; set {name}=NAME to one of them"
                )
        check = make_check(columns)

        def check_row(row: Row) -> str:
            empty = [name for name in wanted.values() if row.get(name) in (None, "")]
            if empty and not may_be_empty:
                return f"column {empty[0]} is empty, so the row cannot be assigned to a split"
            return check(row)

        return check_row

    return make if wanted else make_check


def used_splits(
    files: Mapping[str, Files], options: Options, purpose: Purpose, tests: bool = False
) -> tuple[str, ...]:
    """Return the names of the splits that the task reads. Other splits are not checked.

    Args:
        tests: True if training evaluates the test set that the data may contain.
    """
    if purpose != "train" and len(files) == 1:
        return tuple(files)
    if purpose == PREDICT:
        return ("test",)
    validation = spec_of(options).validation_splits(options)
    if purpose == EVALUATE:
        return validation
    drawn = validation == (VALIDATION,) and VALIDATION not in files
    more = [TEST] if tests and TEST in files else []
    return (TRAIN, *more) if drawn else (TRAIN, *validation, *more)


def _check_text(file: Path) -> list[str]:
    try:
        with open_text(file, "utf-8") as lines:
            blank = True
            for line in lines:
                blank = blank and not line.strip()
    except UnicodeDecodeError as error:
        return [f"{file}: not UTF-8: {error.reason}"]
    except OSError as error:
        return [f"{file}: cannot be read: {error.strerror}"]
    except DataError as error:
        return [str(error)]
    return [f"{file} is empty"] if blank else []


def _listing(folder: Path) -> str:
    return ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"


def _check_rows(file: Path, make_check: MakeCheck, labelled: bool) -> list[str]:
    """Return the problems of a table or JSON file, with their lines.

    Args:
        labelled: True if rows need labels or answers.
    """
    if read_on_hosts(file):
        kind = kind_of(file)
        with file.open("rb") as content:
            good = content.read(MARK_BYTES) in MARKS[kind]
        name = "a Parquet" if kind == PARQUET else "an Arrow"
        return [] if good else [f"{file} is not {name} file"]
    problems: list[str] = []
    check: CheckRow | None = None
    try:
        for where, row in Table((file,), labelled).with_places():
            if isinstance(row, DataError):
                problems.append(str(row))
            else:
                try:
                    check = check or make_check(list(row))
                except DataError as error:  # wrong columns, so all rows would fail
                    return [*problems, f"{where}: {error}"]
                problem = check(row)
                problems += [f"{where}: {problem}"] if problem else []
            if len(problems) >= MAX_PROBLEMS:
                return [
                    *problems, f"{file}: more than {MAX_PROBLEMS} problems; the rest are not shown"
                ]  # fmt: skip
    except DataError as error:
        problems.append(str(error))
    without = "contains no rows" if file.stat().st_size else "is empty"  # a header is not a row
    return problems if problems or check else [f"{file} {without}"]
