"""The examples in docstrings are correct; modules with torch are skipped."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

from tests.programs import ROOT

PLUGINS = "ansible_collections.ftcluster.cluster.plugins."
SOURCES = {  # folder: beginning of a name
    "common": "",
    "runner": "",
    "train": "",
    "plugins": PLUGINS,
    "scripts": "scripts.",
}


def modules_with_examples(folder: Path) -> list[str]:
    found = []
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if folder / "ftcluster_mpi" in path.parents:
            continue  # importing any module of this package imports torch
        if ">>> " in text and not re.search("^(import|from) torch", text, re.MULTILINE):
            found.append(".".join(path.relative_to(folder).with_suffix("").parts))
    return found


@pytest.mark.parametrize(
    "module",
    [
        begin + module
        for folder, begin in SOURCES.items()
        for module in modules_with_examples(ROOT / folder)
    ],
)
def test_examples(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))
    assert (result.failed, result.attempted > 0) == (0, True)
