"""The modules' documentation: text that several modules share is in one fragment."""

import ast
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from tests.programs import ROOT

MODULES = sorted((ROOT / "plugins/modules").glob("*.py"))
COLLECTION = "ftcluster.cluster."


def texts(path: Path) -> dict[str, str]:
    """Return the text constants of a file, also in its classes, by name in lower case."""
    return {
        node.targets[0].id.lower(): node.value.value
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }


FRAGMENTS = {
    f"{COLLECTION}{path.stem}.{name}": yaml.safe_load(text)
    for path in (ROOT / "plugins/doc_fragments").glob("*.py")
    for name, text in texts(path).items()
}
DOCUMENTS: dict[str, dict[str, Any]] = {
    path.stem: yaml.safe_load(texts(path)["documentation"]) for path in MODULES
}


def entries(document: dict[str, Any]) -> list[str]:
    """Return each documented option and attribute as one text."""
    return [
        yaml.safe_dump({name: {key: value}})
        for name in ("options", "attributes")
        for key, value in document.get(name, {}).items()
    ]


def test_no_option_is_documented_twice_in_the_same_words() -> None:
    everywhere = [*DOCUMENTS.values(), *FRAGMENTS.values()]
    counts = Counter(entry for document in everywhere for entry in entries(document))
    assert [entry for entry, count in counts.items() if count > 1] == []


def test_each_fragment_is_that_of_several_modules() -> None:
    used = Counter(
        name
        for document in DOCUMENTS.values()
        for name in document.get("extends_documentation_fragment", ())
    )
    assert used.keys() == FRAGMENTS.keys()
    assert min(used.values()) >= 2
