"""ftcluster.json in a trained model's folder: how it reads data. Standard library only."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ftcluster_common.given_files import read_json
from ftcluster_common.recipe import Recipe

FILE = "ftcluster.json"
# of a task's fields, those that say nothing of how the model reads a row
LEFT_OUT = (
    "glue_task", "metrics", "validation_splits", "validation_split_percentage", "vocab_size",
    "lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "load_in_4bit", "merge_adapters",
)  # fmt: skip


def trained_document(recipe: Recipe, columns: Mapping[str, Any]) -> dict[str, Any]:
    """What the file has: recipe, task, and the task's fields that later uses need.

    Args:
        columns: fields with the columns that were found by their names.
    """
    options = {**asdict(recipe.options), **columns}
    kept = {name: value for name, value in options.items() if name not in LEFT_OUT}
    return {"recipe": recipe.name, "task": recipe.task, "options": kept}


def read_trained(folder: Path) -> dict[str, Any]:
    """What the file of a model's folder has; empty where there is none that can be read."""
    try:
        document = read_json(folder / FILE)
        model = {"recipe": str(document["recipe"]), "task": str(document["task"])}
        return {**model, "options": dict(document["options"])}
    except (ValueError, KeyError, TypeError):
        return {}
