"""Reads the user's own Python files that `--task` and `--metrics` name."""

import contextlib
import os
import stat
import traceback
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from ftcluster.errors import FtclusterError, UsageError
from ftcluster_common.given_files import GivenFileError, read_given
from ftcluster_common.recipe import Recipe
from ftcluster_common.tasks.registry import AnyTask
from ftcluster_common.user_code import (
    MAX_BYTES,
    NO_TORCH,
    CodeError,
    CodeFile,
    UserCode,
    as_code_error,
    code_file,
    code_folder,
    current_task,
    declared_metrics,
    described,
    error_place,
    load_task,
)

TASK = "--task"
RESERVED = {field.name for field in fields(Recipe)}  # keys that every recipe has


def read_code(task: str = "", metrics: str = "") -> UserCode:
    """Read the user's files, and make the task available to recipes.

    The task's file is executed. The metrics' file is not.

    Args:
        task: path of the file or the folder with the task; "" for none.
        metrics: path of the file with the metrics; "" for none.

    Raises:
        UsageError: a file cannot be used; the message gives the reason, file and line.
    """
    with reported():
        code = UserCode(
            _read(task, TASK) if task else None,
            _read(metrics, "--metrics") if metrics else None,
        )
        use_code(code, Path(task).absolute())
    return code


def use_code(code: UserCode, path: Path) -> None:
    """Make the task in a run's files available to recipes; replace any earlier task.

    Args:
        path: location of the task's file, for messages.

    Raises:
        CodeError: a file is not valid; the message gives the reason, file and line.
    """
    declared_metrics(code.metrics)
    spec = load_task(code.task, path)
    if spec and code.task:
        try:
            _check_fields(spec, code.task)
        except CodeError:
            load_task(None, path)
            raise


@contextlib.contextmanager
def reported() -> Iterator[None]:
    """Report an exception in the user's file as a UsageError with file and line.

    If a task returns a value that ftcluster cannot use, the exception occurs in ftcluster. In this
    case the error names the line of ftcluster.

    Raises:
        UsageError: the user's file raised an exception, or probably caused an exception.
    """
    try:
        yield
    except (FtclusterError, OSError):
        raise
    except Exception as error:
        task = current_task()
        if isinstance(error, CodeError) or error_place(error):
            failure = as_code_error(error, NO_TORCH, "")
            raise UsageError(failure.message, failure.hint) from error
        if task is None:
            raise
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise UsageError(
            f"{task.file.name}: {described(error)} ({Path(frame.filename).name}:{frame.lineno} of "
            "ftcluster)",
            f"check what the methods of {type(task.spec).__name__} return",
        ) from error


def _read(name: str, flag: str) -> CodeFile:
    path = Path(name).absolute()
    try:
        if path.is_dir() and flag == TASK and not name.endswith(".py"):
            _check_owner(path, path.stat())
            return code_folder(path.name, {f.stem: _text_of(f) for f in sorted(path.glob("*.py"))})
        return code_file(path.name, _text_of(path))
    except GivenFileError as error:
        raise UsageError(f"{flag}: {error}", f"check the path after {flag}") from None


def _text_of(path: Path) -> str:
    return read_given(path, MAX_BYTES, lambda about: _check_owner(path, about))


def _check_owner(path: Path, about: os.stat_result) -> None:
    """Refuse a file or a folder that other users can change.

    Raises:
        UsageError: another user owns the file, or may write to it.
    """
    if about.st_uid not in (os.geteuid(), 0):
        raise UsageError(
            f"{path} belongs to another account, but would be executed with your rights",
            "check the file, and name a copy that you own",
        )
    if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UsageError(
            f"other accounts can change {path}, which would be executed with your rights",
            f"remove their permission: chmod go-w {path}",
        )


def _check_fields(spec: AnyTask, file: CodeFile) -> None:
    taken = sorted(RESERVED & {field.name for field in fields(spec.fields)})
    if taken:
        raise CodeError(
            f"{file.name}: {spec.fields.__name__} defines the field {', '.join(taken)}, which "
            "every recipe already has with another meaning",
            "rename the field",
        )
