"""The registry that maps the task names in recipes to task classes.

Each task class is registered with the decorator `@register`. The folders next to this module are
imported when a task is first needed, so a new folder needs no change here. At the same time, the
function `on_hosts` of a user's own task file is called, which registers the file's task class.
"""

import pkgutil
from functools import cache
from importlib import import_module
from typing import TypeVar

from ftcluster_common.protocol.job import Purpose
from ftcluster_common.recipe import Recipe
from ftcluster_common.user_code import ON_HOSTS, OwnTask, current_task
from ftcluster_train.engine import tasks
from ftcluster_train.engine.data.run_code import CORRECT, code_failure
from ftcluster_train.engine.tasks.base import Task
from ftcluster_train.errors import TrainError

Kind = TypeVar("Kind", bound=type[Task])

_kinds: dict[str, list[type[Task]]] = {}
_own: dict[str, str] = {}  # digest of the user's file that registered a class, by task name


def register(kind: Kind) -> Kind:
    """Register a task class under its `name`, and return the class. Use it as a decorator.

    Raises:
        ValueError: an unrelated class has the same name. Classes are related if they share a base
            class that derives from `Task`.
    """
    others = _kinds.setdefault(kind.name, [])
    for other in others:
        if not set(kind.__mro__).intersection(other.__mro__).difference(Task.__mro__):
            raise ValueError(
                f"{kind.__module__}.{kind.__name__}: the name {kind.name!r} is already used by the "
                f"task {other.__module__}.{other.__name__}; choose another name"
            )
    if kind not in others:
        others.append(kind)
    return kind


def registered() -> dict[str, tuple[type[Task], ...]]:
    """Return the registered classes by task name.

    Raises:
        TrainError: a user's own file does not register a class for its task.
    """
    _import_folders()
    own = current_task()
    for name, digest in [*_own.items()]:
        if not own or (name, digest) != (own.spec.name, own.file.sha256):
            del _own[name], _kinds[name]
    if own and own.spec.name not in _own:
        _register_own(own)
    return {name: tuple(kinds) for name, kinds in _kinds.items()}


def task_class(recipe: Recipe, purpose: Purpose = "train") -> type[Task]:
    """Return the task class for a recipe."""
    kinds = registered()[recipe.task]
    serving = [kind for kind in kinds if kind.serves(recipe, purpose)]
    return max(serving, key=lambda kind: len(kind.__mro__))


def make_task(
    recipe: Recipe, tokenizer: object, purpose: Purpose = "train", trained: object = None
) -> Task:
    """Return a new task object for a recipe and a tokenizer.

    For the other arguments see `Task`.

    Raises:
        TrainError: the task cannot use the tokenizer.
    """
    return task_class(recipe, purpose)(recipe, tokenizer, purpose, trained)


def _register_own(own: OwnTask) -> None:
    name = own.spec.name
    try:
        getattr(own.module, ON_HOSTS)()
    except Exception as error:
        raise code_failure(error) from error
    if name not in _kinds:
        raise TrainError(
            f"{own.file.name}: {ON_HOSTS}() registers no class for the task {name}",
            f'write @register above a class with name = "{name}"; {CORRECT}',
        )
    _own[name] = own.file.sha256


@cache
def _import_folders() -> None:
    for module in pkgutil.walk_packages(tasks.__path__, f"{tasks.__name__}."):
        import_module(module.name)
