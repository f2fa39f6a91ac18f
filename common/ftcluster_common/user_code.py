"""Users' Python files that a run executes: a task or metrics. Standard library only.

A task is a file, or a folder with a package. A file runs with the rights of the account that
executes it. The control node executes only the task of `--task`, never a file that a recipe, a
model or a host names. The hosts execute the copies in a run's folder.
"""

import ast
import hashlib
import json
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

from ftcluster_common.memory_package import INIT, add_package, execute_package
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
    """The content of a user's Python file, or of a folder with a package.

    Attributes:
        name: name of the file or the folder, for messages and for the copy in a run's folder.
        sha256: digest of the text in UTF-8, or of all modules of a folder.
        text: source code; of a folder, the code of its __init__.py.
        modules: source code of the other modules of a folder, by their names; empty for a file.
    """

    name: str
    sha256: str
    text: str = field(repr=False)
    modules: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)

    @property
    def is_folder(self) -> bool:
        """True for a folder with a package."""
        return not self.name.endswith(".py")

    @property
    def place(self) -> str:
        """The name of the copy in a run's folder: of a file, or of a folder with the modules."""
        return f"{self.name}.task" if self.is_folder else self.name

    @property
    def texts(self) -> dict[str, str]:
        """The texts of a folder by module; of a file, its text by the empty name."""
        return {INIT: self.text, **self.modules} if self.is_folder else {"": self.text}

    def path_of(self, module: str, path: Path) -> Path:
        """Return the path of a module (a key of `texts`).

        Args:
            path: path of the file or the folder.
        """
        return path / f"{module}.py" if module else path


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


def code_folder(name: str, modules: Mapping[str, str]) -> CodeFile:
    """Return the package in a user's folder with its digest.

    Args:
        name: name of the folder.
        modules: source code by module.

    Raises:
        CodeError: the folder has no __init__.py, a module's name is no Python name, or the texts
            are too long.
    """
    if PurePath(name).name != name or name.endswith(".py") or not name.isprintable():
        raise CodeError(f"{name!a} is not the name of a folder with a task", "rename the folder")
    if INIT not in modules:
        raise CodeError(
            f"{name} has no {INIT}.py", "put the declaration of the task into that file"
        )
    for module in modules:
        if not module.isidentifier() or not module.isascii():
            raise CodeError(f"{name}/{module!a}.py cannot be imported", "rename the file")
    content = json.dumps(modules, sort_keys=True).encode()
    if len(content) > MAX_BYTES:
        raise CodeError(
            f"the Python files in {name} have {len(content):,} bytes, more than {MAX_BYTES:,}",
            "leave data and other programs out of the folder",
        )
    others = {module: text for module, text in modules.items() if module != INIT}
    return CodeFile(name, hashlib.sha256(content).hexdigest(), modules[INIT], others)


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
                file = _code_in(entry)
            except CodeError as error:
                raise ValueError(error.message) from None
            if file.sha256 != entry["sha256"]:
                raise ValueError(f"the SHA-256 of {file.name} differs from its record")
            files[kind] = file
    return UserCode(**files)


def _code_in(entry: Mapping[str, Any]) -> CodeFile:
    if entry["name"].endswith(".py"):
        return code_file(entry["name"], entry["text"])
    modules = {INIT: entry["text"], **entry["modules"]}
    if not all(isinstance(text, str) for text in modules.values()):
        raise ValueError(f"a module of {entry['name']} is no text")
    return code_folder(entry["name"], modules)


def load_task(file: CodeFile | None, path: Path) -> AnyTask | None:
    """Register the task of a file under its name, in place of the previous file's task.

    The file is executed unless this process has executed it before.

    Args:
        file: content of the file or the folder; None only removes the previous file's task.
        path: location of the file or the folder, for tracebacks.

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
    """Execute a file as a separate module, or the __init__.py of a folder as a package.

    Only the modules of the same folder can import a module of the folder, by relative imports.

    Args:
        path: location of the file or the folder, for tracebacks.
        import_hint: advice if an import fails.

    Raises:
        CodeError: the file has a syntax error or raises an exception. The message names file and
            line.
    """
    name = f"ftcluster_user_{file.sha256[:16]}"
    for module in file.texts:
        shown = f"{file.name}/{module}.py" if module else file.name
        _names[str(file.path_of(module, path))] = shown
    try:
        if file.is_folder:
            add_package(name, file.texts, path)
            return execute_package(name)
        return _execute_file(name, file.text, path)
    except (Exception, SystemExit) as error:
        raise as_code_error(error, import_hint, file.name) from error


def _execute_file(name: str, text: str, path: Path) -> ModuleType:
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module  # dataclasses look up string annotations there
    try:
        exec(compile(text, str(path), "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
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
