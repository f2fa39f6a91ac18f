"""Start training from low-rank adapters that were saved by peft or ftcluster."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import PretrainedConfig

from ftcluster_common.given_files import read_json
from ftcluster_common.models.adapter_config import (
    CONFIG,
    TOKEN_ROWS,
    SavedAdapters,
    continued,
    ids_by_layer,
    ids_of,
    read_adapters,
)
from ftcluster_common.recipe import Recipe
from ftcluster_train.engine.adapters import (
    ENDINGS,
    adapted_layers,
    adapter_tensors,
    layers_to_adapt,
    linear_layers,
    sizes_of,
    use_adapters,
)
from ftcluster_train.engine.class_head import output_weights
from ftcluster_train.engine.models import mismatched_weights, new_weights
from ftcluster_train.engine.new_tokens import rows_by_layer, use_token_rows
from ftcluster_train.engine.projections import attach_saved
from ftcluster_train.errors import TrainError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SHOWN = 4  # maximum number of problems that an error message lists
OTHER_BASE = "name the model that they were trained with: adapter_base=DIR, or OWNER/NAME"


def check_continued(
    recipe: Recipe, folder: Path, model_class: Any, config: PretrainedConfig
) -> None:
    """Check that training can continue saved adapters, without loading the model's weights.

    Args:
        folder: folder of the adapters.
        model_class: transformers' AutoModelFor... class.
        config: configuration of the base model.

    Raises:
        GivenFileError: the adapters cannot be read.
        TrainError: the recipe contradicts the adapters, or they belong to another model.
    """
    saved = read_adapters(folder)
    values: dict[str, Any] = {"adapter_base": recipe.adapter_base}
    if recipe.spec.can_train_adapters:
        values |= _settings_of(recipe, saved)
    _, contradictions = continued(values, saved, recipe.spec)
    if contradictions:
        raise TrainError("; ".join(problem for _, problem in contradictions))
    try:
        with torch.device("meta"):
            model = model_class.from_config(config)
        model.tie_weights()
    except Exception:  # some models compute with their weights; the ranks check the loaded model
        return
    problems = _unfit_layers(model, saved)
    changing = output_weights(model_class, config)
    shapes = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    problems += [
        f"the base model has no weight {name} of the shape {list(shape)}"
        for name, shape in saved.weights.items()
        if name not in shapes or (name not in changing and shapes[name] != shape)
    ]
    _refuse(problems, folder, recipe.base_model)
    if recipe.adapters:
        allowed = layers_to_adapt(model, recipe.adapters)
        others = sorted(saved.layers.keys() - allowed.keys())
        _refuse([f"{name} gets no adapters" for name in others], folder, recipe.base_model)
        if missing := sorted(allowed.keys() - saved.layers.keys()):
            raise TrainError(
                f"the recipe adapts the layer {missing[0]}, for which {folder} has no adapter",
                f"set lora_target_modules={list(saved.targets)}",
            )


def _settings_of(recipe: Recipe, saved: SavedAdapters) -> dict[str, Any]:
    """Return a recipe's adapter settings, to compare them with the settings of saved adapters.

    If the recipe's model is a folder, the control node has filled in all adapter settings. For
    adapters on the Hub, settings may still have their defaults. The default of lora_alpha depends
    on lora_r. The default of lora_target_modules depends on the model, so `check_continued`
    compares the layers instead.
    """
    adapters = recipe.adapters
    if not adapters:
        return {"lora_r": None}
    settings = {name: value for name, value in asdict(adapters).items() if name in saved.fields}
    settings["lora_alpha"] = adapters.adapter_alpha
    if not adapters.adapter_targets:
        del settings["lora_target_modules"]
    return settings


def _unfit_layers(model: "PreTrainedModel", saved: SavedAdapters) -> list[str]:
    """Return the problems of adapters that match no layer of a model or have other sizes."""
    sizes = {name: sizes_of(layer) for name, layer in linear_layers(model).items()}
    problems = []
    for name, size in saved.layers.items():
        if name not in sizes:
            problems.append(f"the base model has no linear layer {name[:200]!a} before its output")
        elif sizes[name] != size:
            problems.append(
                f"layer {name} has {sizes[name][1]} inputs and {sizes[name][0]} outputs, its "
                f"adapter {size[1]} and {size[0]}"
            )
    return problems


def _refuse(problems: Sequence[str], folder: Path, base: str) -> None:
    if problems:
        more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise TrainError(
            f"the adapters of {folder} do not fit {base}: {'; '.join(problems[:SHOWN])}{more}",
            OTHER_BASE,
        )


def begin_with_adapters(model: "PreTrainedModel", folder: Path, merge: bool) -> None:
    """Load the weights that adapters replace in a base model: a classifier's head, Dense modules.

    `load_adapters` continues the adapters themselves.

    Args:
        merge: True to add the adapters to the weights, because training changes all weights.

    Raises:
        TrainError: the adapters belong to another model.
    """
    if merge:
        replaced = use_adapters(model, folder, merge=True)
    else:
        attach_saved(model, folder)
        tensors = adapter_tensors(folder)
        rows = _token_rows(tensors)
        _refuse(
            use_token_rows(model, ids_by_layer(read_json(folder / CONFIG)), rows),
            folder,
            model.name_or_path,
        )
        parameters = dict(model.named_parameters())
        others = tuple(f".{part}" for part in (*ENDINGS, TOKEN_ROWS))
        whole = {name: value for name, value in tensors.items() if not name.endswith(others)}
        unknown = sorted(whole.keys() - parameters.keys())
        _refuse([f"it has no weight {name}" for name in unknown], folder, model.name_or_path)
        for name, value in whole.items():
            parameters[name].data = value.to(parameters[name].dtype)
        replaced = {*whole}
        model.continued_modules = sorted({name.rpartition(".")[0] for name in whole})
    model.new_weights = sorted(new_weights(model) - replaced)
    unfit = mismatched_weights(model)
    model.mismatched_weights = {name: unfit[name] for name in unfit.keys() - replaced}


def _token_rows(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the trained rows among the tensors of adapters, by layer."""
    ending = f".{TOKEN_ROWS}"
    return {n.removesuffix(ending): rows for n, rows in tensors.items() if n.endswith(ending)}


@torch.no_grad()  # type: ignore[untyped-decorator]
def load_adapters(model: "PreTrainedModel", folder: Path) -> None:
    """Load the values of saved adapters into the new adapters of a model.

    Raises:
        TrainError: the adapters belong to other layers, or have other shapes.
    """
    tensors = adapter_tensors(folder)
    saved = {name: tensor for name, tensor in tensors.items() if name.endswith(ENDINGS)}
    of_layer, trained = ids_by_layer(read_json(folder / CONFIG)), rows_by_layer(model)
    rows = _token_rows(tensors)
    problems = [f"rows of {name} cannot be trained" for name in rows.keys() - trained.keys()]
    for name in rows.keys() & trained.keys():
        # `begin_with_adapters` has already written the rows, but in the dtype of the weight
        places = torch.searchsorted(trained[name].ids, torch.tensor(ids_of(of_layer, name)))
        trained[name].values[places] = rows[name]
    for name, layer in adapted_layers(model).items():
        for part in ENDINGS:
            parameter, tensor = getattr(layer, part, None), saved.pop(f"{name}.{part}", None)
            if parameter is None and tensor is None:
                continue
            if parameter is None or tensor is None or parameter.shape != tensor.shape:
                problems.append(f"{name}.{part} is missing or has another shape")
            else:
                parameter.copy_(tensor)
    problems += [f"{name} belongs to no layer" for name in saved]
    _refuse(problems, folder, model.name_or_path)
