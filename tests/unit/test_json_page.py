"""docs/json.md has the keys that the code writes for commands, runs and events."""

import ast
import re
from collections.abc import Iterator
from dataclasses import fields

import pytest

from ftcluster_common.protocol.events import EVENTS
from ftcluster_common.protocol.run_state import RunState
from tests.programs import ROOT

PAGE = (ROOT / "docs/json.md").read_text(encoding="utf-8")
PARTS = {part.partition("\n")[0]: part for part in re.split(r"^##+ ", PAGE, flags=re.MULTILINE)}
PROGRESS = ("progress/state.py", "RunProgress")
# for each command, the files and classes whose method `document` writes its keys
COMMANDS = {
    "setup": [("operations/setup/setup.py", "SetupResult")],
    "teardown": [("operations/setup/setup.py", "TeardownResult")],
    "train": [PROGRESS, ("operations/train/train.py", "TrainResult")],
    "attach": [PROGRESS, ("operations/runs/attach.py", "AttachResult")],
    "data": [("operations/plan/data.py", "DataResult")],
    "sweep": [("operations/search/sweep_result.py", "SweepResult")],
}


def cells(part: str) -> Iterator[tuple[list[str], str]]:
    """Yield, for each row of a section, the first cell's code spans and the second cell."""
    for line in PARTS[part].splitlines():
        if line.startswith("| `"):
            _, first, second, *_ = re.split(r"(?<!\\)\|", line)
            yield re.findall(r"`([^`]+)`", first), second


def keys_of(cell: str) -> list[str]:
    """Return the keys that a cell names, without text in brackets."""
    return re.findall(r"`(\w+)`", re.sub(r"\([^()]*\)", "", cell))


def written(file: str, class_name: str) -> set[str]:
    """Return the keys of the dicts that the method `document` of a class returns."""
    tree = ast.parse((ROOT / "runner/ftcluster" / file).read_text(encoding="utf-8"))
    (found,) = (n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == class_name)
    (method,) = (n for n in found.body if isinstance(n, ast.FunctionDef) and n.name == "document")
    returned = [n.value for n in ast.walk(method) if isinstance(n, ast.Return)]
    keys = [key for value in returned if isinstance(value, ast.Dict) for key in value.keys]
    return {str(key.value) for key in keys if isinstance(key, ast.Constant)}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_has_the_keys_of_each_command(command: str) -> None:
    (cell,) = (second for first, second in cells("Commands") if first == [command])
    shown = keys_of(cell.partition(". With")[0])
    assert set(shown) == set().union(*(written(*place) for place in COMMANDS[command]))


def test_the_page_has_the_fields_of_a_run() -> None:
    shown = [name for first, _ in cells("ps") for name in first]
    assert sorted(shown) == sorted(field.name for field in fields(RunState))


def test_the_page_has_each_event_with_its_keys() -> None:
    shown: dict[str, set[str]] = {}
    for kinds, cell in cells("events.jsonl"):
        required = cell.partition("; optional")[0]
        groups = required.split(";")
        assert len(groups) == len(kinds), kinds
        for kind, group in zip(kinds, groups, strict=True):
            shown[kind] = set(keys_of(group))
    assert shown == {kind: set(keys) for kind, keys in EVENTS.items()}
