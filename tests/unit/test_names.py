"""Each public class name has one meaning: no two modules define the same name."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from tests.programs import ROOT

PRODUCT = ("runner", "common", "train", "plugins")
BUILT = {"build", "dist"}  # folders that a build of the wheels writes

# Class names that several modules may define, with the reason.
SHARED_NAMES = {
    "ActionModule": "Ansible looks for a class of this name in each action plugin",
    "FilterModule": "Ansible looks for a class of this name in each filter plugin",
    "ModuleDocFragment": "Ansible looks for a class of this name in each documentation fragment",
}


def product_files() -> Iterator[Path]:
    """Yield the product's Python files."""
    for folder in PRODUCT:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not BUILT.intersection(path.relative_to(ROOT).parts):
                yield path


def repeated_names(files: Iterable[Path]) -> dict[str, list[str]]:
    """Return each public class name with several definitions, and the file and line of each."""
    places = defaultdict(list)
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{path}:{node.lineno}")
    return {name: where for name, where in places.items() if len(where) > 1}


@cache
def repeated_in_the_product() -> dict[str, list[str]]:
    return repeated_names(product_files())


def test_no_two_modules_define_a_public_class_of_the_same_name() -> None:
    repeated = repeated_in_the_product()
    assert {name: where for name, where in repeated.items() if name not in SHARED_NAMES} == {}


def test_names_that_several_modules_may_define_are_still_shared() -> None:
    assert repeated_in_the_product().keys() >= SHARED_NAMES.keys()


def test_a_class_inside_a_function_counts_and_a_private_class_does_not(tmp_path: Path) -> None:
    first, second = tmp_path / "first.py", tmp_path / "second.py"
    first.write_text("class Run: ...\n\ndef make():\n    class Row: ...\n")
    second.write_text("class Row: ...\nclass _Run: ...\nclass Runs: ...\n")
    assert repeated_names([first, second]) == {"Row": [f"{first}:4", f"{second}:1"]}
