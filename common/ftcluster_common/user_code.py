"""Users' Python files that a run executes: a task or metrics. Standard library only.

A file runs with the rights of the account that executes it. The control node executes only the file
of `--task`, never a file that a recipe, a model or a host names. The hosts execute the copies in a
run's folder.
"""

import ast
import hashlib
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

from ftcluster_common.tasks.registry import TASKS, AnyTask, forget, restore
from ftcluster_common.tasks.spec import Options

ON_HOSTS = "on_hosts"  # function in a task's file that needs torch
COMPUTE = "compute_metrics"  # function in a file with metrics
NAMES = "METRICS"  # tuple of metric names in that file
MAX_BYTES = 1 << 16  # the job contains the file and must fit into one argument (128 KiB)
NEEDED_FIELDS = ("max_length", "validation_split_percentage")  # fields that each task must have
NO_TORCH = (
    "the control node has no torch and cannot import your modules: at the top of the file, import "
    f"only ftcluster_common and the standard library; import everything else in {ON_HOSTS}()"
)


class CodeError(Exception):
    """A user's file cannot be used.

    Args:
        message: description of the problem, with file and line.
        hint: advice for the user.
    """

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


@dataclass(frozen=True)
class CodeFile:
    """The content of a user's Python file.

    Attributes:
        name: file name, for messages and for the copy in a run's folder.
        sha256: digest of the text in UTF-8.
        text: source code.
    """

    name: str
    sha256: str
    text: str = field(repr=False)


@dataclass(frozen=True)
class UserCode:
    """The users' files that a run executes.

    Attributes:
        task: the file that defines the recipe's task; None for a task of ftcluster.
        metrics: the file that computes further metrics, or None.
    """

    task: CodeFile | None = None
    metrics: CodeFile | None = None

    def __bool__(self) -> bool:
        """Return True if a file is set."""
        return bool(self.files)

    @property
    def files(self) -> tuple[CodeFile, ...]:
        """The files that are set."""
        return tuple(filter(None, (self.task, self.metrics)))


NO_CODE = UserCode()


@dataclass(frozen=True)
class OwnTask:
    """A task that a user's file has registered.

    Attributes:
        file: the executed file.
        module: module of the file, with the function `on_hosts`.
        spec: the registered declaration.
    """

    file: CodeFile
    module: ModuleType
    spec: AnyTask


_tasks: dict[str, OwnTask] = {}  # by digest, so that a process executes each file once
_current: OwnTask | None = None
_names: dict[str, str] = {}  # names of executed files for messages, by the path in tracebacks


def code_file(name: str, text: str) -> CodeFile:
    """Return a user's file with its digest.

    Raises:
        CodeError: the name is not a plain Python file name, or the text is too long.
    """
    if PurePath(name).name != name or not name.endswith(".py") or not name.isprintable():
        raise CodeError(
            f"{name!a} is not the name of a Python file", "give the name of a file that ends in .py"
        )
    content = text.encode("utf-8", "surrogatepass")
    if len(content) > MAX_BYTES:
        raise CodeError(
            f"{name} is larger than {MAX_BYTES:,} bytes: it has {len(content):,}",
            "remove data and unrelated code from the file",
        )
    return CodeFile(name, hashlib.sha256(content).hexdigest(), text)


def code_of(data: Mapping[str, Any] | None) -> UserCode:
    """Return the users' files from their entry in job.json.

    Raises:
        ValueError, TypeError, LookupError, AttributeError: the entry has another form, or a digest
            does not match its text.
    """
    files: dict[str, CodeFile | None] = dict.fromkeys(("task", "metrics"))
    for kind in files:
        entry = (data or {}).get(kind)
        if entry is not None:
            try:
                file = code_file(entry["name"], entry["text"])
            except CodeError as error:
                raise ValueError(error.message) from None
            if file.sha256 != entry["sha256"]:
                raise ValueError(f"the SHA-256 of {file.name} differs from its record")
            files[kind] = file
    return UserCode(**files)


def load_task(file: CodeFile | None, path: Path) -> AnyTask | None:
    """Register the task of a file under its name, in place of the previous file's task.

    The file is executed unless this process has executed it before.

    Args:
        file: content of the file; None only removes the previous file's task.
        path: location of the file, for tracebacks.

    Returns:
        The declaration of the task, or None if `file` is None.

    Raises:
        CodeError: the file is not valid, or does not define exactly one task. The message names
            the file and, for an error in Python, the line.
    """
    global _current
    if _current:
        forget(_current.spec)
        _current = None
    if file is None:
        return None
    if file.sha256 in _tasks:
        restore(_tasks[file.sha256].spec)
    else:
        _tasks[file.sha256] = _executed(file, path)
    _current = _tasks[file.sha256]
    return _current.spec


def current_task() -> OwnTask | None:
    """Return the user's task that is registered now, or None."""
    return _current


def _executed(file: CodeFile, path: Path) -> OwnTask:
    before = set(TASKS)
    try:
        module = execute(file, path, NO_TORCH)
        names = [name for name in TASKS if name not in before]
        if len(names) != 1:
            what = f"the tasks {', '.join(names)}" if names else "no task"
            raise CodeError(
                f"{file.name} registers {what}",
                "register exactly one task: call register(YourSpec()), and import register from "
                "ftcluster_common.tasks.registry",
            )
        spec = TASKS[names[0]]
        for problem in _problems(spec, module):
            raise CodeError(f"{file.name}: {problem}", "see docs/own-task.md")
    except BaseException:
        for name in set(TASKS) - before:
            forget(TASKS[name])
        raise
    return OwnTask(file, module, spec)


def _problems(spec: AnyTask, module: ModuleType) -> Iterator[str]:
    kind = spec.fields
    if not (isinstance(kind, type) and issubclass(kind, Options) and is_dataclass(kind)):
        yield f"the fields of task {spec.name} must be a dataclass derived from Options"
        return
    names = {field_.name for field_ in fields(kind)}
    for name in NEEDED_FIELDS:
        if name not in names:
            yield f"{kind.__name__} has no field {name}, which each task needs"
    if not callable(getattr(module, ON_HOSTS, None)):
        yield (
            f"the function {ON_HOSTS}() is missing; it must import torch and register the class "
            "that the hosts use"
        )


def execute(file: CodeFile, path: Path, import_hint: str) -> ModuleType:
    """Execute a file as a separate module that imports cannot find.

    Args:
        path: location of the file, for tracebacks.
        import_hint: advice if an import fails.

    Raises:
        CodeError: the file has a syntax error or raises an exception. The message names file and
            line.
    """
    module = ModuleType(f"ftcluster_user_{file.sha256[:16]}")
    module.__file__ = str(path)
    _names[str(path)] = file.name
    sys.modules[module.__name__] = module  # dataclasses look up string annotations there
    try:
        exec(compile(file.text, str(path), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        raise as_code_error(error, import_hint, file.name) from error
    return module


def as_code_error(error: BaseException, import_hint: str, name: str) -> CodeError:
    """Convert an error in a user's file to a CodeError with the error's place and a hint.

    Args:
        name: place for the message if the error has no line, such as in code nested too deeply.
    """
    if isinstance(error, CodeError):
        return error
    what = f"{error_place(error) or name}: {described(error)}"
    if isinstance(error, ImportError):
        return CodeError(what, import_hint)
    return CodeError(what, "correct the file and try again")


def described(error: BaseException) -> str:
    """Return an error as one line, with the error's type if the message alone is unclear."""
    if isinstance(error, SystemExit):
        return "the file ends the program; it may only contain definitions"
    if isinstance(error, SyntaxError):
        return f"syntax error: {error.msg}"
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def error_place(error: BaseException) -> str:
    """Return FILE.py:LINE for an error that a user's file raised; "" for other errors.

    The result is the innermost line of the file, even if that line called a function that raised
    the error.
    """
    if isinstance(error, SyntaxError) and error.filename in _names:
        return f"{_names[error.filename]}:{error.lineno or 1}"
    frames = traceback.extract_tb(error.__traceback__)
    places = [(frame.filename, frame.lineno) for frame in frames if frame.filename in _names]
    if not places:
        return ""
    filename, line = places[-1]
    return f"{_names[filename]}:{line}"


def declared_metrics(file: CodeFile | None) -> tuple[str, ...]:
    """Return the names in a file's METRICS, without executing the file.

    Raises:
        CodeError: the file has no such tuple of names, or no function compute_metrics.
    """
    if file is None:
        return ()
    try:
        body = ast.parse(file.text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        raise CodeError(
            f"{file.name}:{line}: syntax error: {getattr(error, 'msg', error)}",
            "correct the file and try again",
        ) from error
    functions = [node for node in body if isinstance(node, ast.FunctionDef)]
    if COMPUTE not in [node.name for node in functions]:
        raise CodeError(
            f"{file.name} has no function {COMPUTE}",
            f"define {COMPUTE}(predictions, references); it must return a dictionary",
        )
    for node in body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.expr() as value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ) if name == NAMES:
                return _names_in(file, node.lineno, value)
    raise CodeError(
        f"{file.name} does not define {NAMES}",
        f'list the names of the metrics that {COMPUTE} returns: {NAMES} = ("NAME",)',
    )


def _names_in(file: CodeFile, line: int, value: ast.expr) -> tuple[str, ...]:
    try:
        names = ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        names = None
    valid = isinstance(names, tuple | list) and names
    if not valid or not all(isinstance(name, str) and name.isidentifier() for name in names):
        raise CodeError(
            f"{file.name}:{line}: {NAMES} is not a tuple of names",
            f'list the names of the metrics: {NAMES} = ("NAME",)',
        )
    return tuple(names)
