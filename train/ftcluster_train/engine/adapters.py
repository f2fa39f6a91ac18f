"""Low-rank adapters of a model (LoRA): adding, saving in peft's format, and merging."""

import json
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

from ftcluster_common.given_files import read_json
from ftcluster_common.recipe import Recipe, split_revision
from ftcluster_common.tasks.registry import spec_of
from ftcluster_common.tasks.spec import Adapters
from ftcluster_kernels.lora import Adapter
from ftcluster_kernels.nf4 import Nf4Weight, dense
from ftcluster_train.engine.models import new_weights
from ftcluster_train.errors import TrainError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"  # peft's file names
PREFIX, PARTS = "base_model.model.", ("lora_A", "lora_B")
SHOWN = 12  # maximum number of problems that an error message lists
# fields of peft's configuration, with their values for plain LoRA
PLAIN = {
    "peft_type": "LORA", "bias": "none", "fan_in_fan_out": False, "use_rslora": False,
    "use_dora": False, "use_qalora": False, "lora_bias": False, "rank_pattern": {},
    "alpha_pattern": {}, "layers_to_transform": None, "target_parameters": None,
    "trainable_token_indices": None, "alora_invocation_tokens": None,
}  # fmt: skip
MERGE = "merge them with peft: merge_and_unload()"


def has_only_adapters(folder: str) -> bool:
    """Return True if a folder contains adapters but no complete model."""
    return (Path(folder) / CONFIG).is_file() and not (Path(folder) / "config.json").is_file()


def check_whole(folder: str) -> None:
    """Check that a folder contains a complete model, not only adapters.

    Raises:
        TrainError: the folder has only adapters.
    """
    if has_only_adapters(folder):
        raise TrainError(
            f"{folder} has adapters, but not their base model",
            f"train it with merge_adapters=true, or {MERGE}",
        )


def settings_of_base(recipe: Recipe) -> dict[str, Any]:
    """Return the configuration fields for loading a base model.

    The head of the base model may have another number of outputs than the trained model.
    """
    return dict(recipe.spec.base_settings)


def add_adapters(model: "PreTrainedModel", options: Adapters) -> None:
    """Freeze a model and add adapters to its linear layers.

    Matrix A is random as in peft, and matrix B is 0, so the model's outputs do not change yet.
    Layers that were already frozen get no adapters. All weights of a classifier's head are trained,
    see `whole_modules`.

    Args:
        model: model to change.
        options: adapter settings. By default all linear layers except the last layer get adapters.

    Raises:
        TrainError: the model lacks layers of `lora_target_modules`, or some weights would stay
            random.
    """
    assert options.lora_r is not None
    linear = {
        name: layer
        for name, layer in linear_layers(model).items()
        if layer.weight.requires_grad or isinstance(layer.weight, Nf4Weight)
    }
    whole = whole_modules(model)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    new = sorted(name for name in trained & new_weights(model) if not _is_within(name, whole))
    if new:
        raise TrainError(
            f"{model.name_or_path} has no weights {', '.join(new[:SHOWN])}, so these would stay "
            "random, because they are not trained with adapters",
            "train all weights: lora_r=null",
        )
    model.requires_grad_(False)
    for module in map(model.get_submodule, whole):
        for parameter in module.parameters():
            parameter.data = parameter.data.float()
            parameter.requires_grad_()
    linear = {name: layer for name, layer in linear.items() if not _is_within(name, whole)}
    wanted = options.lora_target_modules
    unknown = [target for target in wanted if not any(_is_meant(name, target) for name in linear)]
    kind = f"this {model.config.model_type} model"
    if not linear:
        raise TrainError(
            f"{kind} has no linear layer that takes adapters", "train all weights: lora_r=null"
        )
    if unknown:
        names = sorted({name.rpartition(".")[2] for name in linear})
        raise TrainError(
            f"{kind} has no linear layer {', '.join(unknown)} that takes adapters (the output "
            f"layer takes none); layers that do: {', '.join(names[:SHOWN])}",
            "name some of them: lora_target_modules=[...]",
        )
    scale = options.alpha / options.lora_r
    for name, layer in linear.items():
        if wanted and not any(_is_meant(name, target) for target in wanted):
            continue
        down = torch.empty(options.lora_r, layer.in_features)
        nn.init.kaiming_uniform_(down, a=math.sqrt(5))
        up = torch.zeros(layer.out_features, options.lora_r)
        layer.lora_A, layer.lora_B = nn.Parameter(down), nn.Parameter(up)
        layer.adapter = Adapter(layer.lora_A, layer.lora_B, scale, options.lora_dropout)


def whole_modules(model: "PreTrainedModel") -> list[str]:
    """Return the names of a classifier's modules whose weights are all trained.

    These modules are the head, and modules whose weights are missing in the checkpoint. For other
    models the list is empty.
    """
    base = model.base_model
    if base is model or model.get_output_embeddings() is not None:
        return []
    head = [n for n, child in model.named_children() if child is not base and [*child.parameters()]]
    new = {name.rpartition(".")[0] for name in new_weights(model)}
    others = {name: model.get_submodule(name) for name in new if not _is_within(name, head)}
    return [*head, *sorted(name for name, child in others.items() if not [*child.children()])]


def linear_layers(model: "PreTrainedModel") -> dict[str, nn.Linear]:
    """Return a model's linear layers by name, without the layer that computes the logits."""
    last = model.get_output_embeddings()
    return {
        name: module
        for name, module in model.named_modules()
        if type(module) is nn.Linear and module is not last
    }


def _is_within(name: str, modules: Sequence[str]) -> bool:
    """Return True if a name is the name of one of these modules, or of a part of a module."""
    return any(f"{name}.".startswith(f"{module}.") for module in modules)


def _is_meant(name: str, target: str) -> bool:
    """Return True if an entry of `target_modules` matches the layer's name, by peft's rules."""
    return name == target or name.endswith(f".{target}")


def adapted_layers(model: "PreTrainedModel") -> dict[str, nn.Linear]:
    """Return the layers that have adapters, by name."""
    return {name: layer for name, layer in linear_layers(model).items() if hasattr(layer, "lora_A")}


def saved_parameters(model: "PreTrainedModel") -> list[nn.Parameter]:
    """Return the parameters that a checkpoint contains.

    For a model with adapters these are the trained parameters, for other models all parameters.
    """
    adapted = bool(adapted_layers(model))
    return [p for p in model.parameters() if p.requires_grad or not adapted]


def save_adapters(model: "PreTrainedModel", recipe: Recipe, folder: Path) -> None:
    """Write the adapters for `peft.PeftModel.from_pretrained`."""
    options = recipe.adapters
    assert options
    layers = adapted_layers(model)
    tensors = {_saved_name(n): t.contiguous() for n, t in trained_weights(model).items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    base, revision = (recipe.model, None)
    if not Path(base).exists():
        base, revision = split_revision(base)
    config = {
        "base_model_name_or_path": base,
        "revision": revision,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": options.alpha,
        "lora_dropout": options.lora_dropout,
        "modules_to_save": whole_modules(model) or None,
        "peft_type": "LORA",
        "r": options.lora_r,
        "target_modules": _targets(model, layers),
        "task_type": spec_of(options).adapter_type,
        "use_rslora": False,
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _targets(model: "PreTrainedModel", layers: dict[str, nn.Linear]) -> list[str]:
    """Return the names of adapted layers, shortened to their last parts if that is unambiguous."""
    short = sorted({name.rpartition(".")[2] for name in layers})
    others = {name for name, _ in model.named_modules()} - layers.keys()
    if any(_is_meant(name, target) for name in others for target in short):
        return sorted(layers)
    return short


def trained_weights(model: "PreTrainedModel") -> dict[str, torch.Tensor]:
    """Return the weights that a checkpoint of the model contains, by tensor name."""
    weights: dict[str, torch.Tensor] = model.state_dict()
    if not adapted_layers(model):
        return weights
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    return {name: tensor for name, tensor in weights.items() if name in trained}


def _saved_name(name: str) -> str:
    """Return the name of a tensor in peft's file."""
    return f"{PREFIX}{name}.weight" if name.endswith(PARTS) else f"{PREFIX}{name}"


def saved_weights(model: "PreTrainedModel", folder: Path) -> dict[str, torch.Tensor]:
    """Return the weights of a checkpoint in a folder, by the model's tensor names."""
    if adapted_layers(model):
        saved = load_file(folder / WEIGHTS)
        return {name: saved[_saved_name(name)] for name in trained_weights(model)}
    loaded: dict[str, torch.Tensor] = (
        type(model).from_pretrained(folder, trust_remote_code=False).state_dict()
    )
    return loaded


def use_adapters(model: "PreTrainedModel", folder: Path, merge: bool = False) -> set[str]:
    """Add a folder's adapters to their base model.

    Returns:
        The tensor names of the adapters, including base weights that the folder replaces.

    Raises:
        TrainError: the adapters belong to another model, or are not plain LoRA.
    """
    weights, problems = add_saved_adapters(model, folder, merge)
    if problems:
        what = f"the adapters of {folder} do not fit {model.name_or_path}: {'; '.join(problems)}"
        raise TrainError(what, MERGE)
    return {*weights}


def add_saved_adapters(
    model: "PreTrainedModel", folder: Path, merge: bool = False
) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Add a folder's adapters to the layers of a plain model, as peft would.

    Args:
        merge: True to add the adapters to the weights instead of to the layers' outputs.

    Returns:
        The adapters by their tensor names in a model with adapters, and a list of problems.
    """
    config = read_json(folder / CONFIG)
    if unlike := _not_plain(config):
        return {}, unlike
    scale = config["lora_alpha"] / config["r"]
    found = {}
    for saved, tensor in load_file(folder / WEIGHTS).items():
        name = saved.removeprefix(PREFIX)
        layer = name.removesuffix(".weight")
        found[layer if layer.endswith(PARTS) else name] = tensor
    weights, problems, is_plain = dict(found), [], not adapted_layers(model)
    for name, parameter in model.named_parameters():
        if _is_within(name, config.get("modules_to_save") or ()):
            whole = found.pop(name, None)
            if whole is None:
                problems.append(f"weight {name} is missing")
            elif is_plain:  # the base model's head may have a different shape
                parameter.data = whole.to(parameter.dtype)
    for name, layer in model.named_modules():
        if any(_is_meant(name, target) for target in config["target_modules"]):
            down, up = (found.pop(f"{name}.{part}", None) for part in PARTS)
            if down is None or up is None:
                problems.append(f"layer {name} has no adapter")
            elif (up.shape[0], down.shape[1]) != (layer.out_features, layer.in_features):
                problems.append(f"layer {name} has another size")
            elif isinstance(adapter := vars(layer).get("adapter"), Adapter):
                if adapter.scale != scale:
                    problems.append(f"layer {name} is scaled by {scale}, not {adapter.scale}")
            elif merge:
                layer.weight.data.addmm_(up.float(), down.float(), alpha=scale)
            else:
                layer.register_forward_hook(partial(_plus_adapter, down, up, scale))
    problems += [f"adapter {name} belongs to no layer" for name in found]
    return weights, problems[:SHOWN]


def _not_plain(config: Any) -> list[str]:
    """Return problems with peft's configuration: missing fields, and methods beyond plain LoRA."""
    numbers = [config.get(name) for name in ("lora_alpha", "r")]
    if not all(isinstance(number, int | float) and number for number in numbers):
        return [f"{CONFIG} lacks a number r or lora_alpha"]
    if not isinstance(config.get("target_modules"), list):
        return [f"{CONFIG} has no list target_modules"]
    given = {name: config.get(name) for name in PLAIN}
    unlike = (name for name, value in given.items() if value and value != PLAIN[name])
    return [f"{CONFIG} has {name}={given[name]}" for name in unlike]


def _plus_adapter(
    down: torch.Tensor, up: torch.Tensor, scale: float,
    _layer: nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Return a linear layer's output plus its adapter's output; a forward hook."""
    low = functional.linear(inputs[0].to(down.dtype), down)
    # the next layer may need bf16, and only training casts inputs automatically
    return (output + scale * functional.linear(low, up)).to(output.dtype)


@torch.no_grad()  # type: ignore[untyped-decorator]
def merge_adapters(model: "PreTrainedModel") -> None:
    """Add the adapters to the weights of their layers, and remove the adapters.

    The sums are computed in fp32 and rounded to the dtype of the weights. Norms are converted to
    that dtype too. Weights in NF4 are dequantized.
    """
    dtype: Any = None
    for layer in linear_layers(model).values():
        if isinstance(layer.weight, Nf4Weight):
            layer.weight = nn.Parameter(dense(layer.weight), requires_grad=False)
        if isinstance(adapter := vars(layer).get("adapter"), Adapter):
            weight = layer.weight
            dtype = weight.dtype
            merged = weight.float().addmm_(
                adapter.up.float(), adapter.down.float(), alpha=adapter.scale
            )
            weight.copy_(merged)
            del layer.adapter, layer.lora_A, layer.lora_B
    if dtype is not None:
        model.to(dtype)
        model.config.dtype = dtype
