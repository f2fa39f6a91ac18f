"""The user's own Python files for a run (task, metrics). Standard library only.

job.json contains the text of each file. The first program that reads job.json writes a copy of each
file into the run's folder. Before a program executes a copy, it compares the copy with the text in
job.json.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ftcluster_common.given_files import GivenFileError, read_given
from ftcluster_common.protocol.job import Job, read_job
from ftcluster_common.user_code import (
    COMPUTE,
    MAX_BYTES,
    CodeError,
    CodeFile,
    UserCode,
    as_code_error,
    declared_metrics,
    error_place,
    execute,
    load_task,
)
from ftcluster_train.errors import TrainError
from ftcluster_train.io.fsync import write_atomically

NOT_INSTALLED = (
    "use only packages of the stack, because hosts have no others (list: ftcluster stacks)"
)
CORRECT = "correct the file, and start again as a new run"

Metrics = Callable[[Sequence[Any], Sequence[Any]], dict[str, float]]


def open_job(run_dir: Path) -> Job:
    """Read job.json of a run, and make the user's own task available if the run has one.

    Raises:
        GivenFileError: job.json is missing or damaged.
        TrainError: a user's own file has changed or cannot be used.
    """

    def load(code: UserCode) -> None:
        for file in code.files:
            check_copy(file, run_dir / file.place)
        try:
            load_task(code.task, run_dir / code.task.place if code.task else run_dir)
        except CodeError as error:
            raise TrainError(error.message, error.hint) from error

    return read_job(run_dir, load)


def check_copy(file: CodeFile, path: Path) -> None:
    """Write a user's file or folder into the run's folder, or check the existing copy there.

    Args:
        path: path of the copy.

    Raises:
        TrainError: the copy has changed.
    """
    if file.is_folder:
        path.mkdir(mode=0o700, exist_ok=True)
    for module, text in file.texts.items():
        copy = file.path_of(module, path)
        if not copy.exists():
            write_atomically(copy, text)
            copy.chmod(0o600)
        try:
            same = read_given(copy, MAX_BYTES) == text
        except GivenFileError:
            same = False
        if not same:
            raise TrainError(
                f"{copy} is not the file that the run was started with (SHA-256 {file.sha256})",
                "start again as a new run",
            )


def own_metrics(file: CodeFile, path: Path) -> Metrics:
    """Return the metrics function of a user's file, wrapped in checks of its result.

    Raises:
        TrainError: the file cannot be executed. The returned function also raises TrainError, if
            its result is invalid.
    """
    try:
        names = declared_metrics(file)
        compute = getattr(execute(file, path, NOT_INSTALLED), COMPUTE)
    except CodeError as error:
        raise TrainError(error.message, error.hint) from error

    def measure(predictions: Sequence[Any], references: Sequence[Any]) -> dict[str, float]:
        try:
            values = compute(predictions, references)
        except Exception as error:
            raise code_failure(error) from error
        if not isinstance(values, dict) or {*values} != {*names}:
            got = ", ".join(map(str, values)) if isinstance(values, dict) else type(values).__name__
            raise TrainError(
                f"{COMPUTE} of {file.name} returns {got}, but METRICS lists {', '.join(names)}",
                CORRECT,
            )
        try:
            return {name: float(values[name]) for name in names}
        except (TypeError, ValueError) as error:
            raise TrainError(f"{COMPUTE} of {file.name}: {error}", CORRECT) from error

    return measure


def code_failure(error: Exception) -> TrainError:
    """Return a TrainError that describes an exception from a user's own file.

    Raises:
        Exception: `error` itself, if it does not come from a user's file.
    """
    place = error_place(error)
    if not place and not isinstance(error, CodeError):
        raise error
    failure = as_code_error(error, NOT_INSTALLED, place)
    hint = failure.hint if isinstance(error, ImportError | CodeError) else CORRECT
    return TrainError(failure.message, hint)
