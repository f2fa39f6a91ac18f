"""Each task declares its behavior, and no other code asks which task it is."""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from ftcluster_common.tasks.registry import TASKS
from ftcluster_common.tasks.spec import Options, TaskSpec
from tests.programs import ROOT

PACKAGES = (
    "runner/ftcluster", "common/ftcluster_common", "train/ftcluster_train",
    "train/ftcluster_kernels", "train/ftcluster_mpi",
)  # fmt: skip
OF_TASKS = (ROOT / "common/ftcluster_common/tasks", ROOT / "train/ftcluster_train/engine/tasks")
ASKS = {"isinstance", "issubclass", "type"}
# of a recipe's options; the options of a command line belong to no task
PROBES = {"hasattr", "getattr"}


@cache
def classes_of_tasks() -> frozenset[str]:
    """Return class names that reveal a task: names of fields, specs and tasks."""
    fields = {kind.__name__ for spec in TASKS.values() for kind in spec.fields.__mro__}
    specs = {kind.__name__ for spec in TASKS.values() for kind in type(spec).__mro__}
    hosts = {
        node.name
        for path in OF_TASKS[1].rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.bases
    }
    plain = {"object", "ABC", "Generic", Options.__name__, TaskSpec.__name__}
    return frozenset((fields | specs | hosts) - plain)


def names_in(nodes: Iterable[ast.AST | None]) -> set[str]:
    """Return the last part of each dotted name."""
    parts = [part for node in nodes if node for part in ast.walk(node)]
    names = {part.id for part in parts if isinstance(part, ast.Name)}
    return names | {part.attr for part in parts if isinstance(part, ast.Attribute)}


def asks(node: ast.AST) -> bool:
    """Return True if code asks for the kind of a task."""
    kinds = classes_of_tasks()
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
        about = ast.unparse(node.args[0])
        if node.func.id in PROBES:
            return about.endswith(".options")
        is_options = about.rpartition(".")[2] == "options"
        return node.func.id in ASKS and (is_options or bool(names_in(node.args) & kinds))
    if isinstance(node, ast.Match):
        patterns = [part.cls for part in ast.walk(node) if isinstance(part, ast.MatchClass)]
        return bool(names_in(patterns) & kinds) or ast.unparse(node.subject).endswith("options")
    if isinstance(node, ast.Compare):
        return bool(names_in((node.left, *node.comparators)) & kinds)
    if isinstance(node, ast.Dict):  # a table by task
        return bool(names_in(node.keys) & kinds)
    if isinstance(node, ast.Attribute):
        return node.attr == "__class__"
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in TASKS


def questions(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and code of each question for the kind of a task."""
    for node in ast.walk(ast.parse(text)):
        if asks(node):
            yield getattr(node, "lineno", 0), ast.unparse(node).partition("\n")[0]


def product_files() -> list[Path]:
    return [
        path
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if not any(path.is_relative_to(folder) for folder in OF_TASKS)
    ]


def test_nothing_outside_of_the_tasks_asks_which_task_it_is() -> None:
    asked = [
        f"{path.relative_to(ROOT)}:{line}: {code}"
        for path in product_files()
        for line, code in questions(path.read_text(encoding="utf-8"))
    ]
    assert asked == [], "declare it in TaskSpec (common) or Task (train) and ask for that"


@pytest.mark.parametrize(
    "code",
    [
        "if isinstance(recipe.options, DecoderTuning | CausalLm): pass",
        "isinstance(options, Whatever)",
        "found = type(self.options) is kind",
        "isinstance(task, SentenceSimilarityTask) and task.options.hard_negatives",
        "match options:\n    case TextRanking():\n        pass",
        "match recipe.options:\n    case _:\n        pass",
        "match value:\n    case lm.CausalLm():\n        pass",
        "issubclass(kind, tasks.ner.TokenClassification)",
        "recipe.task == 'text-ranking'",
        "KINDS = {'masked-lm': 'MaskedLM'}",
        "recipe.options.__class__.__name__",
        "SCALED_BY = {MaskedLm: ('loss',)}",
        "hasattr(recipe.options, 'temperature')",
        "kind is SentenceSimilarityTask",
    ],
)
def test_each_way_to_ask_is_seen(code: str) -> None:
    assert [*questions(code)]


@pytest.mark.parametrize(
    "code",
    [
        "isinstance(value, Mapping)",
        "type(value) is int",
        "match word:\n    case str(): pass",
        "getattr(options, 'json', 0)",
    ],
)
def test_other_questions_are_allowed(code: str) -> None:
    assert not [*questions(code)]
