"""The Python classes and the playbooks agree on variables and answers."""

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import yaml

from ftcluster.ansible import playbooks
from ftcluster.ansible.answers import SET_FACT
from ftcluster.ansible.playbooks import ClusterVariables, Playbook, RunFolder, Stages, Variables
from tests.programs import ROOT

ALL = [
    one
    for one in vars(playbooks).values()
    if isinstance(one, type) and issubclass(one, Playbook) and "name" in vars(one)
]
# variables that only ftcluster passes; all other variables of a playbook belong to the user or a
# role
OURS = re.compile(
    r"\b(?:data|train|run|logs|fetch|clean|ask|stop|record|host_keys|cluster_known)_(?!_)[a-z_]+\b"
)
# variables that tasks set for later tasks, or plays for imported files
SET = {"run_layer", "train_all_answer", "train_folder_mode", "train_environment", "host_keys_first"}
ENDS = ("import_playbook", "import_tasks", "include_tasks", "import_role", "include_role")


def files_of(path: Path) -> Iterator[Path]:
    """Return a playbook and all files that it includes, directly or indirectly."""
    yield path
    for include in mappings(load(path)):
        for key, value in include.items():
            if not str(key).endswith(ENDS):
                continue
            if "role" in str(key):
                role = ROOT / "roles" / value["name"].rpartition(".")[2]
                tasks = Path(value.get("tasks_from", "main")).stem
                yield from files_of(role / "tasks" / f"{tasks}.yml")
                yield from (role / "vars").glob("*.yml")
                continue
            name = value["file"] if isinstance(value, dict) else value
            for one in path.parent.glob(re.sub(r"\{\{.*\}\}", "*", name)):
                yield from files_of(one)
        for name in include.get("vars_files", ()):
            yield path.parent / name


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def mappings(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for one in value.values() if isinstance(value, dict) else value:
        if isinstance(one, (dict, list)):
            yield from mappings(one)


def texts(value: Any) -> Iterator[str]:
    """Yield all strings except keys and names of tasks."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, one in value.items():
            if key != "name":
                yield from texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from texts(one)


def declared(kind: type[Variables]) -> set[str]:
    """Return the names of all variables, including those of nested parts."""
    found = set()
    for name, hint in get_type_hints(kind).items():
        if name not in {field.name for field in fields(kind)}:
            continue
        part = isinstance(hint, type) and is_dataclass(hint) and issubclass(hint, Variables)
        found |= declared(hint) if part else {name}
    return found


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_each_variable_is_read_and_each_that_is_read_is_given(kind: type[Playbook]) -> None:
    files = set(files_of(ROOT / "playbooks" / f"{kind.name}.yml"))
    said = " ".join(text for path in files for text in texts(load(path)))
    given = declared(kind)
    # some playbooks of runs do not need the whole location of the runs
    own = given - declared(RunFolder)
    assert {name for name in own if not re.search(rf"\b{name}\b", said)} == set()
    given |= declared(ClusterVariables) if issubclass(kind, Stages) else set()
    may_lack = {name for name in OURS.findall(said) if f"{name} | default" in said}
    assert set(OURS.findall(said)) - given - SET - may_lack == set()


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_each_answer_is_given_by_a_task(kind: type[Playbook]) -> None:
    given = set()
    for path in set(files_of(ROOT / "playbooks" / f"{kind.name}.yml")):
        for task in mappings(load(path)):
            name = str(task.get("name"))
            given |= {(name, action, None) for action in task if "." in str(action)}
            given |= {(name, SET_FACT, fact) for fact in task.get(SET_FACT, ())}
    for answer in kind.answers:
        fact = answer.key if answer.action == SET_FACT else None
        assert (answer.task, answer.action, fact) in given


def test_raw_commands_are_such_as_csh_takes() -> None:
    """The login shell runs them: csh allows no newline, and no `!` before a word, in quotes."""
    files = [*ROOT.glob("playbooks/*.yml"), *ROOT.glob("roles/*/tasks/*.yml")]
    raw = [
        task["ansible.builtin.raw"]
        for path in files
        for task in mappings(load(path))
        if "ansible.builtin.raw" in task
    ]
    assert len(raw) >= 6
    assert [text for text in raw if re.search(r"\n|!(?![\s=(])", text)] == []
