"""Complete a recipe whose model is a folder of low-rank adapters, and describe its training."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftcluster_common.given_files import GivenFileError
from ftcluster_common.models.adapter_config import continued, has_only_adapters, read_adapters
from ftcluster_common.recipe import Recipe
from ftcluster_common.tasks.registry import AnyTask
from ftcluster_common.tasks.spec import Contradiction

UNKNOWN = (  # the control node downloads nothing
    "{} is no folder on this machine, so the settings of its adapters are unknown: download it and "
    "set model=DIR; or set lora_r=N, or lora_r=null to merge the adapters and train all weights"
)


def with_adapters(
    values: Mapping[str, Any], spec: AnyTask
) -> tuple[Mapping[str, Any], list[Contradiction]]:
    """Return the fields that the adapters in a recipe's `model` determine, and contradictions.

    Both are empty if `model` is not a folder with adapters. The settings of adapters on the Hub are
    unknown here, so the recipe must set `lora_r`.

    Args:
        values: the fields that the recipe sets.
        spec: task of the recipe.
    """
    folder = _folder_of(values.get("model"))
    is_unknown = folder is None and values.get("adapter_base") and "lora_r" not in values
    if is_unknown and spec.can_train_adapters:
        return {}, [("adapter_base", UNKNOWN.format(values.get("model")))]
    if folder is None or not has_only_adapters(folder):
        return {}, []
    try:
        saved = read_adapters(folder)
    except GivenFileError as error:
        return {}, [("model", str(error))]
    return continued(values, saved, spec)


def _folder_of(model: Any) -> Path | None:
    """Return the folder that a recipe's model names, or None."""
    try:
        return Path(model) if isinstance(model, str) and Path(model).is_dir() else None
    except (OSError, ValueError):  # the name is too long, or has a NUL
        return None


def adapter_notes(recipe: Recipe) -> tuple[str, ...]:
    """Return a note on how saved adapters are trained; () if the model has no saved adapters."""
    if recipe.adapter_base is None:
        return ()
    name, base = Path(recipe.model).name, recipe.adapter_base
    if recipe.lora_r is None:
        return (f"the adapters of {name} are merged into {base}, and all weights are trained",)
    what = f"the adapters of {name} are trained further, with base model {base} and"
    return (f"{what} lora_r={recipe.lora_r}; to merge them and train all weights: lora_r=null",)
