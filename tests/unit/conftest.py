"""Tests of the collection's own code see the checkout's, by whichever of its two names."""

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

COLLECTION = "ansible_collections.ftcluster.cluster."


class Checkout(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds what the collection's files import from each other, also where it is not installed."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        ours = name.startswith(f"{COLLECTION}plugins")
        return importlib.machinery.ModuleSpec(name, self) if ours else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return importlib.import_module(spec.name.removeprefix(COLLECTION))

    def exec_module(self, module: ModuleType) -> None:
        """It has been executed, as what it is called in the checkout."""


sys.meta_path.insert(0, Checkout())
