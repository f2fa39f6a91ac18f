"""Makes transformers read the list of its models once when it is imported.

transformers lists the classes of all its models by reading their sources, and does so twice, which
takes 0.27 s of CPU time in each rank.
"""

import copy
import importlib
from pathlib import Path
from typing import Any

from ftcluster_train.rank.startup_hooks import after_import

LISTS = "transformers.utils.import_utils"  # the module that lists the classes of models


def read_models_once() -> None:
    """Keep the first list. Call this before transformers is imported."""
    after_import(LISTS, _keep_lists)


def _keep_lists() -> None:
    lists: Any = importlib.import_module(LISTS)
    name = "create_import_structure_from_path"
    if (read := getattr(lists, name, None)) is None:  # another version of transformers
        return
    models = str(Path(lists.__file__).parents[1] / "models")
    kept: list[Any] = []

    def read_once(module_path: str | Path) -> Any:
        if str(module_path) not in (models, f"{models}/__init__.py"):
            return read(module_path)
        if not kept:
            kept.append(read(models))
        return copy.deepcopy(kept[0])  # callers change the list

    setattr(lists, name, read_once)
