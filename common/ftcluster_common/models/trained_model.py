"""Reads and writes ftcluster.json, the file with the task's fields in a trained model's folder.

Standard library only.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ftcluster_common.given_files import FormatError, GivenFileError, read_json
from ftcluster_common.protocol.formats import TRAINED, opened, stamped
from ftcluster_common.recipe import Recipe
from ftcluster_common.tasks.registry import TASKS

FILE = "ftcluster.json"


def pipeline_of(task: str, options: Mapping[str, Any]) -> str:
    """Return the name of the model's task on the Hub and in transformers' pipelines.

    Args:
        options: values of the task's fields.
    """
    return TASKS[task].pipeline_of(options) if task in TASKS else task


def trained_document(
    recipe: Recipe, columns: Mapping[str, Any], head: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the content of ftcluster.json: recipe, task, and the fields for using the model.

    Args:
        recipe: recipe of the training, or a recipe for using the trained model.
        columns: values of the task's column fields, including columns detected by their names.
        head: settings of a classifier that is saved as adapters: `classes` (the names),
            `problem_type`, `label_thresholds` and `calibration_temperature`. The config.json of a
            whole model contains these settings.
    """
    options = {**asdict(recipe.options), **columns}
    kept = {
        name: value for name, value in options.items() if name not in recipe.spec.training_fields
    }
    document = {"recipe": recipe.name, "task": recipe.task, "options": kept}
    if head:
        document["head"] = dict(head)
    return stamped(TRAINED, document)


def read_trained(folder: Path) -> dict[str, Any]:
    """Return the content of ftcluster.json in a model's folder; empty if it cannot be read.

    Raises:
        GivenFileError: a newer version of ftcluster wrote the file.
    """
    try:
        document = opened(TRAINED, read_json(folder / FILE))
        recipe, task, values = (document[name] for name in ("recipe", "task", "options"))
    except FormatError as error:
        raise GivenFileError(f"{folder / FILE} {error}") from error
    except (ValueError, KeyError, TypeError):
        return {}
    if not (isinstance(recipe, str) and isinstance(task, str) and isinstance(values, dict)):
        return {}
    trained = {"recipe": recipe, "task": task, "options": values}
    if head := _head(document.get("head")):
        trained["head"] = head
    return trained


def _head(head: Any) -> dict[str, Any]:
    """Return the valid settings of a classifier's head; the file may come from anybody."""
    if not isinstance(head, dict):
        return {}
    fields = ("classes", "problem_type", "label_thresholds", "calibration_temperature")
    classes, kind, limits, divisor = map(head.get, fields)
    valid: dict[str, Any] = {}
    if isinstance(classes, list) and all(isinstance(name, str) for name in classes):
        valid["classes"] = classes
    if isinstance(kind, str):
        valid["problem_type"] = kind
    if isinstance(limits, dict) and all(isinstance(at, int | float) for at in limits.values()):
        valid["label_thresholds"] = limits
    if isinstance(divisor, int | float) and 0 < divisor < math.inf:
        valid["calibration_temperature"] = divisor
    return valid
