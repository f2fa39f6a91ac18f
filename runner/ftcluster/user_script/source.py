"""Finds imports and arguments in a script's source, without running the script.

The script's own modules are read too, because scripts often define their arguments in them.
"""

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftcluster.user_script.gpu import gpu_lines

MAX_MODULES = 200  # maximum number of the script's own modules that are read
NOTHING = "has no statement to run (convert a notebook with: jupyter nbconvert --to script FILE)"
LOCAL_RANK = {"--local_rank", "--local-rank"}  # torch.distributed.launch passes these options
MAKE_GROUPS = {"init_process_group", "InitProcessGroupKwargs"}
SPAWNERS = {"mp", "multiprocessing"}  # names for torch.multiprocessing, such as mp in `mp.spawn`
PARSERS = {"HfArgumentParser", "TrlParser"}  # classes that convert options to TrainingArguments


@dataclass(frozen=True)
class Import:
    """An import of a module.

    Attributes:
        module: first part of the module's dotted name.
        where: file:line.
        certain: True if the import is at module level, outside of conditions and `try`.
    """

    module: str
    where: str
    certain: bool


@dataclass(frozen=True)
class Argument:
    """An argument of TrainingArguments, in the source or on the command line.

    Attributes:
        name: name with underscores.
        value: value as text; "" if there is no value or the value is an expression.
        where: file:line, or "" for the command line.
        others: names of all arguments in the call; "**" for unpacked arguments.
    """

    name: str
    value: str
    where: str
    others: frozenset[str]


@dataclass(frozen=True)
class Call:
    """A call in the source.

    Attributes:
        text: name of the called function, with the relevant argument.
        where: file:line.
        backend: backend of torch.distributed that the call requests, or "".
    """

    text: str
    where: str
    backend: str = ""


@dataclass
class Source:
    """The imports, flags and arguments of a script and its own modules.

    Attributes:
        imports: imports of modules, except the script's own modules.
        own_flags: options that the script defines itself, such as `no_cuda`.
        arguments: arguments of TrainingArguments in the source.
        backends: calls that name a backend of torch.distributed.
        spawns: calls that start further processes as ranks.
        gpus: places that require a GPU, as file name and line numbers: train.py:3, 7.
        local_rank: spelling of the option --local-rank if the script defines this option, or "".
        parses_flags: True if the script's options become arguments of TrainingArguments.
        syntax_error: file, line and error if the script is not valid Python, or "".
    """

    imports: list[Import] = field(default_factory=list)
    own_flags: set[str] = field(default_factory=set)
    arguments: list[Argument] = field(default_factory=list)
    backends: list[Call] = field(default_factory=list)
    spawns: list[Call] = field(default_factory=list)
    gpus: list[str] = field(default_factory=list)
    local_rank: str = ""
    parses_flags: bool = False
    syntax_error: str = ""


def read_source(script: Path, folder: Path) -> Source:
    """Read a script, and the modules that it imports from its folder.

    Args:
        script: file of the script.
        folder: folder in which Python searches for modules first.
    """
    source = Source()
    pending, seen = [script], {script}
    while pending and len(seen) <= MAX_MODULES:
        path = pending.pop(0)
        name = str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # warnings about invalid escapes
                tree = ast.parse(path.read_bytes(), str(path))
            if path == script and not _does_anything(tree):
                source.syntax_error = f"{name}:1: {NOTHING}"
        except (SyntaxError, OSError, ValueError, RecursionError, MemoryError) as error:
            line = getattr(error, "lineno", None) or 1
            if path == script:
                source.syntax_error = f"{name}:{line}: {getattr(error, 'msg', error)}"
            continue
        if lines := gpu_lines(tree):
            source.gpus.append(f"{name}:{', '.join(map(str, lines))}")
        for node in ast.walk(tree):
            for module, *inner in _modules(node):
                files = {
                    file for dotted in (module, *inner) for file in _own_files(dotted, path, folder)
                }
                pending += sorted(files - seen)
                seen |= files
                if not files and not module.startswith("."):
                    where = f"{name}:{getattr(node, 'lineno', 1)}"
                    certain = node in tree.body
                    source.imports.append(Import(module.partition(".")[0], where, certain))
            _add(node, source, name)
    return source


def _does_anything(tree: ast.Module) -> bool:
    """Return True if a file has a statement with an effect.

    A notebook has none: it is JSON, which Python parses as a single value.
    """
    return any(
        not isinstance(node, ast.Expr)
        or any(isinstance(inner, ast.Call | ast.Await) for inner in ast.walk(node))
        for node in tree.body
    )


def _modules(node: Any) -> list[list[str]]:
    """Return each module that a statement imports, with imported names that may be modules."""
    match node:
        case ast.Import():
            return [[alias.name] for alias in node.names]
        case ast.ImportFrom():
            base = "." * node.level + (node.module or "")
            dot = "" if base.endswith(".") else "."
            return [[base, *(f"{base}{dot}{alias.name}" for alias in node.names)]]
    return []


def _add(node: ast.AST, source: Source, name: str) -> None:
    """Add the arguments, calls and flags in a node of the file `name` to the source."""
    match node:
        case ast.alias(name=used) | ast.Attribute(attr=used):
            source.parses_flags |= used in PARSERS
        case ast.ClassDef():  # HfArgumentParser converts the fields of a dataclass to options
            source.own_flags |= {
                inner.target.id
                for inner in node.body
                if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name)
            }
        case ast.Call():
            texts = [_text(arg) for arg in node.args]
            flags = [text for text in texts if text.startswith("-")]
            source.own_flags |= {flag.lstrip("-").split("/")[0].replace("-", "_") for flag in flags}
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            where = f"{name}:{node.lineno}"
            if called.endswith("TrainingArguments"):
                source.arguments += _arguments(node, name)
            elif called == "add_argument" and not source.local_rank:
                source.local_rank = next((flag for flag in flags if flag in LOCAL_RANK), "")
            elif called in MAKE_GROUPS:
                named = [_text(word.value) for word in node.keywords if word.arg == "backend"]
                first = texts[:1] if called == "init_process_group" else []
                source.backends += [
                    Call(f'{called}("{backend}")', where, backend)
                    for backend in (named or first)
                    if backend and ":" not in backend
                ]
            elif called == "spawn" and (owner := _owner(node.func)) in SPAWNERS:
                source.spawns.append(Call(f"{owner}.spawn", where))


def _owner(function: ast.expr) -> str:
    """Return the name before the last dot of a called function: b of a.b.c(), or ""."""
    value = getattr(function, "value", None)
    return getattr(value, "attr", getattr(value, "id", ""))


def _text(node: ast.expr) -> str:
    """Return a string constant's value, or ""."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _arguments(call: ast.Call, name: str) -> Iterator[Argument]:
    others = frozenset(keyword.arg or "**" for keyword in call.keywords)
    for keyword in call.keywords:
        value = keyword.value.value if isinstance(keyword.value, ast.Constant) else ""
        if keyword.arg:
            yield Argument(keyword.arg, str(value), f"{name}:{keyword.lineno}", others)


def _own_files(dotted: str, importer: Path, folder: Path) -> Iterator[Path]:
    """Yield the files of a module and of its packages, if they are in the script's folder."""
    level = len(dotted) - len(dotted.lstrip("."))
    start = importer.parents[level - 1] if level else folder
    parts = [part for part in dotted.split(".") if part]
    for count in range(len(parts), -1 if level else 0, -1):
        inside = start.joinpath(*parts[:count])
        for path in (inside.with_suffix(".py") if count else None, inside / "__init__.py"):
            if path is not None and path.is_file():
                yield path
