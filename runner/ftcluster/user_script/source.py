"""What a script's source says about itself, read without running it.

Its own modules beside it are read as well, because that is where scripts keep their arguments.
"""

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

CATCHES_IMPORT = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}
# these make options of a function's parameters
OPTIONS_OF_FUNCTIONS = {"fire", "typer", "jsonargparse", "tyro", "cyclopts"}
MAX_MODULES = 200  # of the script's own


@dataclass(frozen=True)
class Import:
    """One import of a module.

    Attributes:
        module: the first part of its name.
        where: file:line.
        certain: whether it is carried out whenever the script runs, and an error ends the script.
    """

    module: str
    where: str
    certain: bool


@dataclass(frozen=True)
class Keyword:
    """One `name=value` in a call of TrainingArguments, or of a class called like it.

    Attributes:
        name: the argument's.
        value: its value where that is written there, else None.
        where: file:line.
        beside: the names of all arguments of that call, and "**" for those from elsewhere.
    """

    name: str
    value: object
    where: str
    beside: frozenset[str]


@dataclass(frozen=True)
class Source:
    """What a script and its own modules say.

    Attributes:
        imports: every import of a module that is not its own.
        own_flags: options that it defines itself, as `no_cuda`.
        keywords: arguments of TrainingArguments in the source.
        attributes: every name that is read off an object, and where first.
        broken: a file that is not Python, with its line and why; or "".
    """

    imports: tuple[Import, ...] = ()
    own_flags: frozenset[str] = frozenset()
    keywords: tuple[Keyword, ...] = ()
    attributes: dict[str, str] = field(default_factory=dict)
    broken: str = ""

    @property
    def modules(self) -> set[str]:
        """All modules that are imported anywhere."""
        return {found.module for found in self.imports}


def read_source(script: Path, folder: Path) -> Source:
    """Read a script and those of its modules that are in its folder.

    Args:
        script: the file.
        folder: where Python looks for its modules first.
    """
    pending, seen = [script], {script}
    imports: list[Import] = []
    keywords: list[Keyword] = []
    own_flags: set[str] = set()
    attributes: dict[str, str] = {}
    while pending and len(seen) <= MAX_MODULES:
        path = pending.pop(0)
        name = str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of odd escapes: the script's own affair
                tree = ast.parse(path.read_bytes(), str(path))
        except SyntaxError as error:
            if path == script:
                return Source(broken=f"{name}:{error.lineno or 1}: not Python: {error.msg}")
            continue
        except (OSError, ValueError) as error:
            if path == script:
                return Source(broken=f"{name}: cannot be read: {error}")
            continue
        reader = _Reader(name)
        reader.visit(tree)
        for found, dotted in reader.imports:
            own = list(_own_modules(dotted, path, folder))
            new = [module for module in own if module not in seen]
            seen.update(new)
            pending += new
            if not own and dotted and not dotted.startswith("."):
                imports.append(found)
        keywords += reader.keywords
        own_flags |= reader.flags
        attributes = reader.attributes | attributes
        if OPTIONS_OF_FUNCTIONS & {found.module for found, _ in reader.imports}:
            own_flags |= reader.parameters
    return Source(tuple(imports), frozenset(own_flags), tuple(keywords), attributes)


def _own_modules(dotted: str, importer: Path, folder: Path) -> Iterator[Path]:
    """The files of a module that are in the script's folder."""
    level = len(dotted) - len(dotted.lstrip("."))
    start = folder if not level else importer.parents[level - 1]
    parts = dotted.lstrip(".").split(".") if dotted.strip(".") else []
    for count in range(len(parts), -1 if level else 0, -1):
        inside = start.joinpath(*parts[:count])
        for path in (inside.with_suffix(".py") if count else None, inside / "__init__.py"):
            if path is not None and path.is_file():
                yield path


class _Reader(ast.NodeVisitor):
    """Collects what `Source` has of one file; imports with their whole dotted name."""

    def __init__(self, name: str) -> None:
        self.imports: list[tuple[Import, str]] = []
        self.keywords: list[Keyword] = []
        self.flags: set[str] = set()
        self.parameters: set[str] = set()
        self.attributes: dict[str, str] = {}
        self._name = name
        self._guards = 0  # functions, conditions and tries around here

    def _where(self, node: ast.expr | ast.stmt | ast.keyword) -> str:
        return f"{self._name}:{node.lineno}"

    def _guarded(self, nodes: list[ast.stmt] | list[ast.ExceptHandler]) -> None:
        self._guards += 1
        for node in nodes:
            self.visit(node)
        self._guards -= 1

    def _import(self, dotted: str, node: ast.stmt) -> None:
        found = Import(dotted.lstrip(".").split(".")[0], self._where(node), self._guards == 0)
        self.imports.append((found, dotted))

    def visit_Import(self, node: ast.Import) -> None:
        """`import a.b`."""
        for alias in node.names:
            self._import(alias.name, node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """`from a.b import c`, where c may be a module as well."""
        dotted = "." * node.level + (node.module or "")
        self._import(dotted, node)
        for alias in node.names:
            inner = f"{dotted}{'' if dotted.endswith('.') else '.'}{alias.name}"
            self.imports.append((Import("", "", False), inner))

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """A function's body is carried out when it is called, if at all."""
        every = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        self.parameters |= {argument.arg for argument in every}
        for decorator in node.decorator_list:
            self.visit(decorator)
        self._guarded(node.body)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_If(self, node: ast.If) -> None:
        """A condition, but for the one that every script ends with."""
        if _is_main(node.test):
            for inner in node.body:
                self.visit(inner)
        else:
            self.visit(node.test)
            self._guarded(node.body)
        self._guarded(node.orelse)

    def visit_Try(self, node: ast.Try) -> None:
        """A try that would catch a failed import."""
        caught = {name for handler in node.handlers for name in _names(handler.type)}
        if caught & CATCHES_IMPORT or any(handler.type is None for handler in node.handlers):
            self._guarded(node.body)
        else:
            for inner in node.body:
                self.visit(inner)
        self._guarded(node.handlers)
        for inner in (*node.orelse, *node.finalbody):
            self.visit(inner)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """HfArgumentParser makes options of a dataclass's fields."""
        self.flags |= {
            inner.target.id
            for inner in node.body
            if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name)
        }
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """`add_argument("--flag")`, and TrainingArguments(...)."""
        texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
        self.flags |= {
            text.lstrip("-").split("/")[0].replace("-", "_")
            for text in texts
            if isinstance(text, str) and text.startswith("-")
        }
        called = next(iter(_names(node.func)), "")
        if called.endswith("TrainingArguments"):
            beside = frozenset(keyword.arg or "**" for keyword in node.keywords)
            for keyword in node.keywords:
                if keyword.arg:
                    value = keyword.value
                    known = value.value if isinstance(value, ast.Constant) else None
                    self.keywords.append(Keyword(keyword.arg, known, self._where(keyword), beside))
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """`training_args.no_cuda`, where it is read."""
        if isinstance(node.ctx, ast.Load):
            self.attributes.setdefault(node.attr, self._where(node))
        self.generic_visit(node)


def _names(node: ast.expr | None) -> Iterator[str]:
    """The last part of a name, or of each of a tuple of names."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.Tuple):
        for inner in node.elts:
            yield from _names(inner)


def _is_main(test: ast.expr) -> bool:
    """`__name__ == "__main__"`."""
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.left, ast.Name)
        and test.left.id == "__name__"
    )
