"""A base class has several subclasses, or is also used without its subclass.

A base class whose only subclass is in another file is one class on two pages: a reader has to open
both files to understand either.
"""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from tests.unit.test_names import product_files

# Base classes with one subclass in another file, with the reasons why they are separate.
USED_AS_THEY_ARE = {
    "DataError": "it is raised for each error in data",
    "Result": "most operations return it as it is",
    "ShallowLoader": "it loads the YAML of stacks and bundles",
    "TrainError": "it is raised for each error that a user can fix",
}


def name_of_base(node: ast.expr) -> str:
    """Return the last part of a base class's name, without its type arguments."""
    if isinstance(node, ast.Subscript):
        return name_of_base(node.value)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def subclasses(files: Iterable[Path]) -> Iterator[tuple[str, str, Path]]:
    """Yield for each base of each class: the base's name, the class's name and its file."""
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                yield "", node.name, path
                yield from ((name_of_base(base), node.name, path) for base in node.bases)


def split_classes(files: Iterable[Path]) -> dict[str, str]:
    """Return each base class whose only subclass is in another file, and that subclass."""
    found = list(subclasses(files))
    files_of = {name: path for base, name, path in found if not base}
    split = {}
    for base in files_of:
        derived = [(name, path) for other, name, path in found if other == base]
        if len(derived) == 1 and derived[0][1] != files_of[base]:
            split[base] = derived[0][0]
    return split


@cache
def split_in_the_product() -> dict[str, str]:
    return split_classes(list(product_files()))


def test_no_class_is_split_between_a_base_and_its_only_subclass_in_another_file() -> None:
    split = split_in_the_product()
    assert {base: name for base, name in split.items() if base not in USED_AS_THEY_ARE} == {}


def test_base_classes_that_are_used_as_they_are_still_have_one_subclass() -> None:
    assert split_in_the_product().keys() >= USED_AS_THEY_ARE.keys()


def test_a_base_in_the_same_file_or_with_two_subclasses_is_allowed(tmp_path: Path) -> None:
    bases, derived = tmp_path / "bases.py", tmp_path / "derived.py"
    bases.write_text(
        "class Near: ...\nclass Here(Near): ...\nclass Shared: ...\nclass Page: ...\n"
        "class Generic_: ...\n"
    )
    derived.write_text(
        "class First(Shared): ...\nclass Second(Shared): ...\nclass Next(bases.Page): ...\n"
        "class Third(Generic_[int]): ...\n"
    )
    assert split_classes([bases, derived]) == {"Page": "Next", "Generic_": "Third"}
