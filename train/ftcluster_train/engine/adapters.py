"""Low-rank adapters (LoRA): add them to a model, save them in peft's format, and merge them.

GPT-2 uses transformers' Conv1D, which is a linear layer with a transposed weight.
"""

import json
import math
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional
from transformers import PretrainedConfig, PreTrainedTokenizerBase
from transformers.pytorch_utils import Conv1D

from ftcluster_common.given_files import read_json
from ftcluster_common.models.adapter_config import (
    CONFIG,
    MAGNITUDE,
    MERGE,
    PARTS,
    PREFIX,
    RESTRICTIONS,
    TOKEN_IDS,
    TOKEN_ROWS,
    WEIGHTS,
    config_problems,
    has_only_adapters,
    ids_by_layer,
    is_meant,
    layer_and_part,
)
from ftcluster_common.models.trained_model import read_trained
from ftcluster_common.recipe import Recipe, split_revision
from ftcluster_common.tasks.registry import spec_of
from ftcluster_common.tasks.spec import Adapters, scale_of_adapters
from ftcluster_kernels.lora import Adapter, row_factors, row_lengths
from ftcluster_kernels.nf4 import Nf4Weight, dense
from ftcluster_train.engine.models import load_config, new_weights
from ftcluster_train.engine.new_tokens import merge_token_rows, saved_indices, use_token_rows
from ftcluster_train.engine.projections import (
    NAME,
    attach_saved,
    projections_of,
    save_projections,
    saved_projections,
)
from ftcluster_train.errors import TrainError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SHOWN = 12  # maximum number of problems that an error message lists
ENDINGS = (*PARTS, MAGNITUDE)  # last parts of the names of an adapter's tensors
Layer: TypeAlias = nn.Linear | Conv1D
THRESHOLDS = "label_thresholds"  # configuration field: threshold of each class, by class name
TEMPERATURE = "calibration_temperature"  # configuration field: divisor of the logits
# configuration fields that are saved with the class names of a classifier
OF_HEAD = ("problem_type", THRESHOLDS, TEMPERATURE)


def check_whole(folder: str) -> None:
    """Check that a folder contains a complete model, not only adapters.

    Raises:
        TrainError: the folder contains only adapters.
    """
    if has_only_adapters(Path(folder)):
        raise TrainError(
            f"{folder} has adapters, but not their base model",
            "to continue adapters of the Hub, download them into a folder and use --model DIR, or "
            "set adapter_base=OWNER/NAME and their lora_r; for other uses train with "
            f"merge_adapters=true, or {MERGE}",
        )


def trained_config(
    recipe: Recipe, model: str, tokenizer: PreTrainedTokenizerBase, adapters: str
) -> PretrainedConfig:
    """Return the configuration of a trained model.

    For adapters, this is the configuration of the base model with the class names that were saved
    with the adapters.

    Args:
        model: folder of the trained model; for adapters, folder of their base model.
        adapters: folder of the adapters, or "" if the model has none.

    Raises:
        TrainError: the configuration cannot be loaded.
    """
    if not adapters:
        return load_config(recipe, model, tokenizer)
    head = read_trained(Path(adapters)).get("head", {})
    settings = dict(recipe.spec.base_settings)
    if classes := head.get("classes"):
        settings["id2label"] = dict(enumerate(classes))
        settings["label2id"] = {name: number for number, name in enumerate(classes)}
        settings |= {"problem_type": head.get("problem_type")}
    config = load_config(recipe, model, tokenizer, **settings)
    tuned = {name: head[name] for name in (THRESHOLDS, TEMPERATURE) if head.get(name)}
    config.update(tuned)  # from_pretrained ignores unknown fields
    return config


def head_fields(model: "PreTrainedModel") -> dict[str, Any]:
    """Return the fields of a classifier's head that `trained_config` needs to load its adapters.

    Returns:
        The fields by name; {} if the model has no adapters or no classifier head.
    """
    config = model.config
    if not adapted_layers(model) or not whole_modules(model):
        return {}
    classes = [str(config.id2label.get(n, f"LABEL_{n}")) for n in range(config.num_labels)]
    others = {name: getattr(config, name, None) for name in OF_HEAD}
    return {"classes": classes, **{name: value for name, value in others.items() if value}}


def add_adapters(model: "PreTrainedModel", options: Adapters) -> None:
    """Freeze a model and add adapters to its linear layers.

    As in peft, matrix A of each adapter starts at random and matrix B at 0, so the adapters do not
    change the model's outputs before the first step. Layers that were already frozen get no
    adapters. A classifier's head and the Dense modules of sentence-transformers get no adapters
    either: all their weights are trained.

    Args:
        model: model to change.
        options: adapter settings. By default, all linear layers except the output layer get
            adapters.

    Raises:
        TrainError: layers of `lora_target_modules` cannot have adapters, or some weights would
            stay random.
    """
    assert options.lora_r is not None
    layers = layers_to_adapt(model, options)
    whole = _trained_whole(model)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    new = sorted(name for name in trained & new_weights(model) if not _is_within(name, whole))
    if new:
        raise TrainError(
            f"{model.name_or_path} lacks the weights {', '.join(new[:SHOWN])}, which would stay "
            "random, because a training of adapters does not change them",
            "train all weights: lora_r=null",
        )
    model.requires_grad_(False)
    for module in map(model.get_submodule, whole):
        for parameter in module.parameters():
            parameter.data = parameter.data.float()
            parameter.requires_grad_()
    for layer in layers.values():
        outputs, inputs = sizes_of(layer)
        down = torch.empty(options.lora_r, inputs)
        nn.init.kaiming_uniform_(down, a=math.sqrt(5))
        up = torch.zeros(outputs, options.lora_r)
        layer.lora_A, layer.lora_B, magnitude = nn.Parameter(down), nn.Parameter(up), None
        if options.use_dora:
            lengths = row_lengths(matrix_of(layer), down, up, options.adapter_scale)
            magnitude = layer.lora_magnitude_vector = nn.Parameter(lengths)
        layer.adapter = Adapter(
            layer.lora_A, layer.lora_B, options.adapter_scale, options.lora_dropout, magnitude
        )


def check_targets(model_class: Any, config: PretrainedConfig, options: Adapters) -> None:
    """Check that the layers named in `lora_target_modules` can have adapters; load no weights.

    Args:
        model_class: transformers' AutoModelFor... class.

    Raises:
        TrainError: layers of `lora_target_modules` cannot have adapters.
    """
    try:
        with torch.device("meta"):
            model = model_class.from_config(config)
        model.tie_weights()
    except Exception:  # some models cannot be built without weights; the ranks check them later
        return
    layers_to_adapt(model, options)


def layers_to_adapt(model: "PreTrainedModel", options: Adapters) -> dict[str, Layer]:
    """Return the layers of a model that get adapters, by name.

    Raises:
        TrainError: the model has no layers that can have adapters, or a name in
            `lora_target_modules` matches none of these layers.
    """
    whole, shared = _trained_whole(model), _shared_weights(model)
    layers = {
        name: layer
        for name, layer in linear_layers(model).items()
        if layer.weight.requires_grad or isinstance(layer.weight, Nf4Weight)
        if layer.weight not in shared and not _is_within(name, whole)
    }
    kind = f"this {model.config.model_type} model"
    if not layers and any(hasattr(module, "source_cls") for module in model.modules()):
        raise TrainError(
            f"the layers of {kind} are Conv1D layers, which cannot have adapters in NF4",
            "set load_in_4bit=false",
        )
    if not layers:
        raise TrainError(
            f"{kind} has no linear layer that can have adapters", "train all weights: lora_r=null"
        )
    problems = [
        _why_no_adapters(model, target, whole)
        for target in options.adapter_targets
        if not any(is_meant(name, target) for name in layers)
    ]
    if problems:
        names = sorted({name.rpartition(".")[2] for name in layers})
        raise TrainError(
            f"lora_target_modules does not fit {kind}: {'; '.join(problems)}",
            f"layers that can have adapters: {', '.join(names[:SHOWN])}; choose from these layers: "
            "lora_target_modules=[...]",
        )
    return {
        name: layer
        for name, layer in layers.items()
        if not options.adapter_targets
        or any(is_meant(name, target) for target in options.adapter_targets)
    }


def _why_no_adapters(model: "PreTrainedModel", target: str, whole: Sequence[str]) -> str:
    """Return the reason why none of the layers that match `target` can have adapters."""
    named = [pair for pair in model.named_modules() if is_meant(pair[0], target)]
    if not named:
        return f"the model has no layer {target}"
    name, module = named[0]
    weight = getattr(module, "weight", None)
    if weight is not None and weight in _shared_weights(model):
        return (
            f"{target} shares its weight with another layer, such as the token embeddings, which "
            "merged adapters would change too"
        )
    if module is model.get_output_embeddings():
        return f"{target} is the output layer, and the loss uses its weight without adapters"
    if _is_within(name, whole):
        return f"all weights of {target} are trained, so it needs no adapters"
    if not isinstance(module, nn.Linear | Conv1D):
        return f"{target} is of the type {type(module).__name__}, not a linear layer"
    return f"the weight of {target} is frozen"


def _shared_weights(model: "PreTrainedModel") -> set[nn.Parameter]:
    """Return the parameters that are shared by several modules."""
    parameters = (p for module in model.modules() for p in module.parameters(recurse=False))
    return {parameter for parameter, users in Counter(parameters).items() if users > 1}


def whole_modules(model: "PreTrainedModel") -> list[str]:
    """Return the names of a classifier's modules whose weights are all trained.

    These modules are the head, modules whose weights are missing in the checkpoint, and modules
    that saved adapters replace. The list is empty for models that are not classifiers.
    """
    base = model.base_model
    if base is model or model.get_output_embeddings() is not None:
        return []
    head = [n for n, child in model.named_children() if child is not base and [*child.parameters()]]
    new = {name.rpartition(".")[0] for name in new_weights(model)}
    others = {name: model.get_submodule(name) for name in new if not _is_within(name, head)}
    whole = {name for name, child in others.items() if not [*child.children()]}
    whole |= {
        name for name in getattr(model, "continued_modules", ()) if not _is_within(name, head)
    }
    return [*head, *sorted(whole)]


def _trained_whole(model: "PreTrainedModel") -> list[str]:
    """Return the names of the modules whose weights are all trained beside adapters."""
    return [*whole_modules(model), *([NAME] if projections_of(model) else [])]


def linear_layers(model: "PreTrainedModel") -> dict[str, Layer]:
    """Return a model's linear layers by name, without the layer that computes the logits."""
    last = model.get_output_embeddings()
    return {
        name: module
        for name, module in model.named_modules()
        if type(module) in (nn.Linear, Conv1D) and module is not last
    }


def matrix_of(layer: Layer) -> torch.Tensor:
    """Return the weight of a layer as a matrix of shape (outputs, inputs), which may be a view."""
    weight: torch.Tensor = layer.weight
    return weight.T if isinstance(layer, Conv1D) else weight


def sizes_of(layer: Layer) -> tuple[int, int]:
    """Return the number of outputs and inputs of a layer."""
    if isinstance(layer, Conv1D):
        return int(layer.nf), int(layer.nx)
    return layer.out_features, layer.in_features


def _is_within(name: str, modules: Sequence[str]) -> bool:
    """Return True if `name` is one of these modules, or a module or parameter inside them."""
    return any(f"{name}.".startswith(f"{module}.") for module in modules)


def adapted_layers(model: "PreTrainedModel") -> dict[str, Layer]:
    """Return the layers that have adapters, by name."""
    return {name: layer for name, layer in linear_layers(model).items() if hasattr(layer, "lora_A")}


def saved_parameters(model: "PreTrainedModel") -> list[nn.Parameter]:
    """Return the parameters that a checkpoint contains.

    A checkpoint of a model with adapters contains only the trained parameters. A checkpoint of any
    other model contains all parameters.
    """
    adapted = bool(adapted_layers(model))
    return [p for p in model.parameters() if p.requires_grad or not adapted]


def save_adapters(model: "PreTrainedModel", recipe: Recipe, folder: Path) -> None:
    """Write a model's adapters in the format that `peft.PeftModel.from_pretrained` reads.

    Dense modules are saved in their own folders, where sentence-transformers reads them.
    """
    options = recipe.adapters
    assert options
    layers = adapted_layers(model)
    tensors = {
        _saved_name(name): tensor.contiguous()
        for name, tensor in trained_weights(model).items()
        if not _is_within(name, [NAME])
    }
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    save_projections(model, folder)
    base, revision = (recipe.base_model, None)
    if not Path(base).exists():
        base, revision = split_revision(base)
    config = {
        "base_model_name_or_path": base,
        "revision": revision,
        "bias": "none",
        "fan_in_fan_out": any(isinstance(layer, Conv1D) for layer in layers.values()),
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": options.adapter_alpha,
        "lora_dropout": options.lora_dropout,
        "modules_to_save": whole_modules(model) or None,
        "peft_type": "LORA",
        "r": options.lora_r,
        "target_modules": _targets(model, layers),
        "task_type": spec_of(options).adapter_type or None,
        TOKEN_IDS: saved_indices(model),
        "use_dora": options.use_dora,
        "use_rslora": options.use_rslora,
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _targets(model: "PreTrainedModel", layers: dict[str, Layer]) -> list[str]:
    """Return the names of the layers with adapters, shortened to their last parts if possible.

    The names are shortened only if no layer without adapters matches one of the short names.
    """
    short = sorted({name.rpartition(".")[2] for name in layers})
    others = {name for name, _ in model.named_modules()} - layers.keys()
    if any(is_meant(name, target) for name in others for target in short):
        return sorted(layers)
    return short


def trained_weights(model: "PreTrainedModel") -> dict[str, torch.Tensor]:
    """Return the weights that a checkpoint of the model contains, by their names in the model."""
    weights: dict[str, torch.Tensor] = model.state_dict()
    if not adapted_layers(model):
        return weights
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    return {name: tensor for name, tensor in weights.items() if name in trained}


def _saved_name(name: str) -> str:
    """Return the name that a tensor has in peft's adapter file."""
    return f"{PREFIX}{name}.weight" if name.endswith(PARTS) else f"{PREFIX}{name}"


def saved_weights(model: "PreTrainedModel", folder: Path) -> dict[str, torch.Tensor]:
    """Read the weights of the checkpoint in `folder`, by their names in the model."""
    if adapted_layers(model):
        saved = load_file(folder / WEIGHTS)
        beside = saved_projections(model, folder)
        names = trained_weights(model).keys() - beside.keys()
        return {**{name: saved[_saved_name(name)] for name in names}, **beside}
    loaded: dict[str, torch.Tensor] = (
        type(model).from_pretrained(folder, trust_remote_code=False).state_dict()
    )
    return loaded


def adapter_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of saved adapters, by the names that they have in a model."""
    tensors = {}
    for saved, tensor in load_file(folder / WEIGHTS).items():
        layer, part = layer_and_part(saved)
        tensors[f"{layer}.{part}" if part else layer] = tensor
    return tensors


def use_adapters(model: "PreTrainedModel", folder: Path, merge: bool = False) -> set[str]:
    """Add the adapters saved in a folder to their base model.

    Returns:
        The names of all tensors in the folder: those of the adapters, and those that replace
        weights of the base model.

    Raises:
        TrainError: the adapters do not fit the model, or are not plain LoRA.
    """
    weights, problems = add_saved_adapters(model, folder, merge)
    if problems:
        what = f"the adapters of {folder} do not fit {model.name_or_path}: {'; '.join(problems)}"
        raise TrainError(what, MERGE)
    return {*weights}


def add_saved_adapters(
    model: "PreTrainedModel", folder: Path, merge: bool = False
) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Add the adapters saved in a folder to the layers of a model, as peft would.

    If a layer already has an adapter, the layer is not changed, but only compared with the saved
    adapter. Otherwise, the Dense modules saved with the adapters replace those of the model.

    Args:
        merge: True to add the adapters to the weights; False to add their outputs to the outputs
            of the layers.

    Returns:
        The saved tensors, by the names that they have in a model, and a list of problems.
    """
    config = read_json(folder / CONFIG)
    if unlike := config_problems(config if isinstance(config, dict) else {}):
        return {}, unlike
    scale = scale_of_adapters(config["lora_alpha"], config["r"], bool(config.get("use_rslora")))
    rest = adapter_tensors(folder)
    is_plain, problems = not adapted_layers(model), []
    if is_plain:
        attach_saved(model, folder)
    weights = {**rest, **saved_projections(model, folder)}
    with_adapters = {name.rpartition(".")[0] for name in rest if name.endswith(ENDINGS)}
    if is_plain:
        ending = f".{TOKEN_ROWS}"
        of_tokens = [name for name in rest if name.endswith(ending)]
        rows = {name.removesuffix(ending): rest.pop(name) for name in of_tokens}
        problems += use_token_rows(model, ids_by_layer(config), rows)
    for name, parameter in model.named_parameters():
        whole = None if name.endswith(ENDINGS) else rest.pop(name, None)
        if whole is not None and is_plain:  # the base model's head may have a different shape
            parameter.data = whole.to(parameter.dtype)
        elif whole is None and _is_within(name, config.get("modules_to_save") or ()):
            problems.append(f"weight {name} is missing")
    targets = config["target_modules"]
    # peft interprets patterns and restrictions differently, so the saved tensors decide which
    # layers have adapters
    by_tensors = isinstance(targets, str) or any(config.get(name) for name in RESTRICTIONS)
    shared = _shared_weights(model) if merge else set()
    for name, layer in model.named_modules():
        listed = not by_tensors and any(is_meant(name, target) for target in targets)
        if listed or (by_tensors and name in with_adapters):
            down, up, magnitude = (rest.pop(f"{name}.{part}", None) for part in (*PARTS, MAGNITUDE))
            if down is None or up is None:
                problems.append(f"layer {name} has no adapter")
            elif bool(config.get("use_dora")) != (magnitude is not None):
                problems.append(
                    f"layer {name} has an adapter with use_dora={magnitude is not None}"
                )
            elif not isinstance(layer, nn.Linear | Conv1D):
                problems.append(f"layer {name} is not linear, but of type {type(layer).__name__}")
            elif (up.shape[0], down.shape[1]) != sizes_of(layer):
                problems.append(f"layer {name} has another size than its adapter")
            elif layer.weight in shared:
                problems.append(f"layer {name} shares its weight, so it cannot be merged")
            elif isinstance(adapter := vars(layer).get("adapter"), Adapter):
                if adapter.scale != scale:
                    problems.append(f"layer {name} is scaled by {scale}, not {adapter.scale}")
            else:
                lengths = None if magnitude is None else nn.Parameter(magnitude, False)
                factors = nn.Parameter(down, False), nn.Parameter(up, False)
                adapter = Adapter(*factors, scale, magnitude=lengths)
                if merge:
                    _merge(layer, adapter)
                else:
                    layer.register_forward_hook(partial(_plus_adapter, adapter))
    problems += [f"adapter {name} matches no layer" for name in rest]
    return weights, problems[:SHOWN]


def _plus_adapter(
    adapter: Adapter, layer: Layer, inputs: tuple[torch.Tensor], output: torch.Tensor
) -> torch.Tensor:
    """Add an adapter's output to the output of its linear layer; used as a forward hook."""
    low = functional.linear(inputs[0].to(adapter.down.dtype), adapter.down)
    changed = output + adapter.scale * functional.linear(low, adapter.up)
    if adapter.magnitude is not None:
        bias = 0 if layer.bias is None else layer.bias
        changed = (changed - bias) * row_factors(matrix_of(layer), adapter) + bias
    # the next layer may need bf16 inputs, and inputs are cast automatically only in training
    return changed.to(output.dtype)


@torch.no_grad()  # type: ignore[untyped-decorator]
def _merge(layer: Layer, adapter: Adapter) -> None:
    """Add an adapter to a layer's weight; the sum is computed in fp32."""
    factors = None if adapter.magnitude is None else row_factors(matrix_of(layer), adapter)
    merged = matrix_of(layer).float().addmm(
        adapter.up.float(), adapter.down.float(), alpha=adapter.scale
    )  # fmt: skip
    if factors is not None:
        merged *= factors[:, None]
    matrix_of(layer).copy_(merged)


@torch.no_grad()  # type: ignore[untyped-decorator]
def merge_adapters(model: "PreTrainedModel") -> None:
    """Add the adapters to the weights of their layers, and remove the adapters.

    The sums are computed in fp32 and then rounded to the dtype of the weights. Norms are also
    converted to this dtype. NF4 weights are dequantized.
    """
    merge_token_rows(model)
    dtype: Any = None
    for layer in linear_layers(model).values():
        if isinstance(layer.weight, Nf4Weight):
            layer.weight = nn.Parameter(dense(layer.weight), requires_grad=False)
        if isinstance(adapter := vars(layer).get("adapter"), Adapter):
            dtype = layer.weight.dtype
            _merge(layer, adapter)
            del layer.adapter, layer.lora_A, layer.lora_B
            if adapter.magnitude is not None:
                del layer.lora_magnitude_vector
    if dtype is not None:
        model.to(dtype)
        model.config.dtype = dtype
