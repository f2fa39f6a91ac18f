"""Reads a folder of low-rank adapters in peft's format, so that their training can continue.

The files may come from anybody, so types, tensor names and shapes are checked. Standard library
only.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftcluster_common.given_files import GivenFileError, read_json
from ftcluster_common.models.safetensors_header import TensorEntry, read_header
from ftcluster_common.tasks.registry import AnyTask
from ftcluster_common.tasks.spec import Contradiction

CONFIG, WEIGHTS, PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
BASE = "base_model_name_or_path"  # field of peft's configuration with the base model
PREFIX, PARTS, MAGNITUDE = "base_model.model.", ("lora_A", "lora_B"), "lora_magnitude_vector"
MERGE = "merge them with peft: merge_and_unload()"
# name of the tensor with the trained rows of an embedding, as in peft's TrainableTokensLayer
TOKEN_ROWS = "token_adapter.trainable_tokens_delta"
TOKEN_IDS = "trainable_token_indices"  # field with the ids of these tokens
MOST_IDS = 1 << 21  # limit of token ids; the largest vocabularies contain a million tokens
INPUT_EMBEDDING = ""  # stands for the layer if peft saves only a list of token ids
SHOWN = 4  # maximum number of names in a message
# Fields of peft's configuration that must be empty or have these values.
PLAIN = {
    "peft_type": "LORA", "bias": "none", "use_qalora": False, "lora_bias": False,
    "rank_pattern": {}, "alpha_pattern": {}, "layer_replication": None, "target_parameters": None,
    "alora_invocation_tokens": None,
}  # fmt: skip
# initialization methods that do not change the base model's weights
INITIALIZATIONS = (True, False, None, "default", "gaussian", "orthogonal", "eva")
RESTRICTIONS = ("layers_to_transform", "exclude_modules")  # fields that restrict target_modules


@dataclass(frozen=True)
class SavedAdapters:
    """Low-rank adapters in a folder.

    Attributes:
        base: folder of the base model, or its name on the Hub with `@REVISION`; "" if the files do
            not name a base model.
        rank: number of rows of each matrix A.
        alpha: value of lora_alpha.
        dropout: dropout probability of the adapters' input.
        targets: names of the adapted layers, in the form of `lora_target_modules`.
        layers: number of outputs and number of inputs of each adapted layer, by the layer's name.
        weights: shapes of the weights that are saved in full, such as a classifier's head, by the
            weight's name.
        token_ids: ids of the tokens whose rows are trained, by the full name of the layer.
    """

    folder: Path
    base: str
    rank: int
    alpha: float
    dropout: float
    targets: tuple[str, ...]
    use_rslora: bool
    use_dora: bool
    layers: Mapping[str, tuple[int, int]]
    weights: Mapping[str, tuple[int, ...]]
    token_ids: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def fields(self) -> dict[str, Any]:
        """The recipe fields that describe these adapters."""
        return {
            "lora_r": self.rank, "lora_alpha": self.alpha, "lora_dropout": self.dropout,
            "lora_target_modules": self.targets, "use_rslora": self.use_rslora,
            "use_dora": self.use_dora,
        }  # fmt: skip


def has_only_adapters(folder: Path) -> bool:
    """Return True if a folder contains adapters but no complete model."""
    return (folder / CONFIG).is_file() and not (folder / "config.json").is_file()


def config_problems(config: Mapping[str, Any]) -> list[str]:
    """Return the problems of peft's configuration: missing fields and unsupported methods."""
    numbers = [config.get(name) for name in ("lora_alpha", "r")]
    if not all(_is_number(number) and number for number in numbers):
        return [f"{CONFIG} needs the numbers r and lora_alpha, which must not be 0"]
    targets = config.get("target_modules")
    if not isinstance(targets, str) and not _is_texts(targets):
        return [f"{CONFIG} has no list target_modules"]
    if not _is_texts(config.get("modules_to_save") or []):
        return [f"{CONFIG} has no list modules_to_save"]
    try:
        ids_by_layer(config)
    except ValueError as error:
        return [str(error)]
    values = {name: config.get(name) for name in PLAIN}
    unlike = [
        f"{CONFIG} has {name}={str(value)[:100]}"
        for name, value in values.items()
        if value and value != PLAIN[name]
    ]
    method = config.get("init_lora_weights")
    if not any(method is known or method == known for known in INITIALIZATIONS):
        unlike.append(
            f"{CONFIG} has init_lora_weights={str(method)[:100]}, which changes the base model's "
            "weights"
        )
    return unlike


def ids_by_layer(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the token ids whose rows are trained, by layer, from peft's configuration.

    If the configuration contains a list, its layer is INPUT_EMBEDDING. If it contains a dictionary,
    the keys may be only the last parts of layer names.

    Raises:
        ValueError: the field contains something else than token ids.
    """
    ids = config.get(TOKEN_IDS) or {}
    layers = ids if isinstance(ids, dict) else {INPUT_EMBEDDING: ids}
    for of_layer in layers.values():
        is_list = isinstance(of_layer, list) and len({*map(str, of_layer)}) == len(of_layer)
        if not is_list or not all(type(each) is int and 0 <= each < MOST_IDS for each in of_layer):
            raise ValueError(f"{CONFIG} has {TOKEN_IDS}={str(ids)[:100]}, which are no token ids")
    return {layer: tuple(of_layer) for layer, of_layer in layers.items() if of_layer}


def rows_needed(config: Mapping[str, Any]) -> int:
    """Return the minimum number of embeddings for the trained rows; 0 if no rows are trained.

    Raises:
        ValueError: see `ids_by_layer`.
    """
    return max((1 + max(ids) for ids in ids_by_layer(config).values()), default=0)


def ids_of(by_layer: Mapping[str, Sequence[int]], name: str) -> Sequence[int]:
    """Return the ids of the tokens whose rows in a layer are trained; () if there are none.

    Args:
        by_layer: result of `ids_by_layer`.
        name: name of the layer in the model.
    """
    matching = (ids for layer, ids in by_layer.items() if is_meant(name, layer))
    return next(matching, by_layer.get(INPUT_EMBEDDING, ()))


def is_meant(name: str, target: str) -> bool:
    """Return True if a target of peft's configuration matches the name of a layer."""
    return bool(target) and (name == target or name.endswith(f".{target}"))


def read_adapters(folder: Path) -> SavedAdapters:
    """Return the adapters in a folder, without the values of their weights.

    Raises:
        GivenFileError: a file is missing or damaged, or ftcluster cannot continue the training of
            such adapters. The message contains all reasons and a remedy.
    """
    config = read_json(folder / CONFIG)
    if not isinstance(config, dict):
        raise GivenFileError(f"{folder / CONFIG} is not a JSON object")
    problems = config_problems(config)
    rank, dropout = config.get("r"), config.get("lora_dropout") or 0.0
    if not problems and (type(rank) is not int or rank < 1 or config["lora_alpha"] <= 0):
        problems.append(f"{CONFIG} has r={str(rank)[:100]}, lora_alpha={config['lora_alpha']}")
    if not _is_number(dropout) or not 0 <= dropout < 1:
        problems.append(f"{CONFIG} has lora_dropout={str(dropout)[:100]}")
    if problems:
        raise _refusal(folder, problems)
    if not (folder / WEIGHTS).is_file():
        if (folder / PICKLE).is_file():
            raise GivenFileError(
                f"{folder / PICKLE} is a pickle, which may run code when it is loaded: load the "
                f"adapters with peft and save them with save_pretrained, which writes {WEIGHTS}"
            )
        raise GivenFileError(f"{folder} has no {WEIGHTS}")
    use_dora = bool(config.get("use_dora"))
    tensors = dict(read_header(folder / WEIGHTS))
    by_layer, ending = ids_by_layer(config), f".{TOKEN_ROWS}"
    rows = {
        layer_and_part(name)[0].removesuffix(ending): tensors.pop(name).shape
        for name in [*tensors]
        if name.endswith(ending)
    }
    token_ids = {layer: tuple(ids_of(by_layer, layer)) for layer in rows}
    layers, weights, problems = _sorted_tensors(tensors, int(config["r"]), use_dora)
    problems += [
        f"{layer[:200]!a} has another number of rows than {TOKEN_IDS}"
        for layer, shape in rows.items()
        if len(shape) != 2 or shape[0] != len(token_ids[layer]) or not shape[0]
    ]
    if not layers and not problems:
        problems = [f"{WEIGHTS} has no adapters"]
    if problems:
        raise _refusal(folder, problems)
    targets = config["target_modules"]
    if isinstance(targets, str) or any(config.get(name) for name in RESTRICTIONS):
        targets = sorted(layers)
    base, revision = config.get(BASE), config.get("revision")
    base = base if isinstance(base, str) else ""
    return SavedAdapters(
        folder, f"{base}@{revision}" if base and isinstance(revision, str) and revision else base,
        int(config["r"]), float(config["lora_alpha"]), float(dropout), tuple(targets),
        bool(config.get("use_rslora")), use_dora, layers, weights, token_ids,
    )  # fmt: skip


def _refusal(folder: Path, problems: list[str]) -> GivenFileError:
    shown = "; ".join(problems[:SHOWN])
    more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
    return GivenFileError(
        f"ftcluster cannot train the adapters in {folder} further: {shown}{more}. To train from "
        f"these adapters, {MERGE}, and name the folder of the merged model"
    )


def layer_and_part(saved: str) -> tuple[str, str]:
    """Split the name of a tensor in peft's file into the layer and the part of its adapter.

    If a weight is saved in full, the part is "".

    >>> layer_and_part("base_model.model.encoder.query.lora_A.weight")
    ('encoder.query', 'lora_A')
    >>> layer_and_part("base_model.model.classifier.weight")
    ('classifier.weight', '')
    """
    name = saved.removeprefix(PREFIX)
    layer, _, part = name.removesuffix(".weight").rpartition(".")
    return (layer, part) if part in (*PARTS, MAGNITUDE) else (name, "")


def _sorted_tensors(
    tensors: Mapping[str, TensorEntry], rank: int, use_dora: bool
) -> tuple[dict[str, tuple[int, int]], dict[str, tuple[int, ...]], list[str]]:
    """Return the sizes of the adapted layers, the shapes of other weights, and the problems."""
    parts: dict[str, dict[str, tuple[int, ...]]] = {}
    weights: dict[str, tuple[int, ...]] = {}
    problems = []
    for saved, tensor in tensors.items():
        layer, part = layer_and_part(saved)
        if not saved.startswith(PREFIX) or not tensor.is_float:
            problems.append(f"{saved[:200]!a} ({tensor.dtype[:20]}) is no tensor of an adapter")
        elif part:
            parts.setdefault(layer, {})[part] = tensor.shape
        elif "lora_" in layer:
            problems.append(f"{layer[:200]!a} is not the adapter of a linear layer")
        else:
            weights[layer] = tensor.shape
    for layer, shapes in parts.items():
        down, up = (shapes.get(part, ()) for part in PARTS)
        length = shapes.get(MAGNITUDE)
        fits = len(down) == len(up) == 2 and down[0] == up[1] == rank
        if not fits:
            shown = f"lora_A {list(down)} and lora_B {list(up)}"
            problems.append(f"{layer[:200]!a} has {shown}, not matrices of rank {rank}")
        elif length != ((up[0],) if use_dora else None):
            problems.append(f"{layer[:200]!a} does not fit use_dora={use_dora}")
    sizes = {
        layer: (shapes[PARTS[1]][0], shapes[PARTS[0]][1]) for layer, shapes in parts.items()
    } if not problems else {}  # fmt: skip
    return sizes, weights, problems


def continued(
    values: Mapping[str, Any], saved: SavedAdapters, spec: AnyTask
) -> tuple[dict[str, Any], list[Contradiction]]:
    """Return the recipe fields that saved adapters determine, and contradictions to `values`.

    By default, the training of the adapters continues. If `values` sets lora_r to None, or if the
    task cannot train adapters, the adapters are merged into their base model, and all weights are
    trained.

    Args:
        values: fields that the recipe sets.
        spec: task of the recipe.
    """
    problems: list[Contradiction] = []
    implied = {} if values.get("adapter_base") else {"adapter_base": saved.base}
    if not (values.get("adapter_base") or saved.base):
        what = f"{saved.folder / CONFIG} does not name the adapters' base model"
        problems.append(("model", f"{what}: set adapter_base=DIR, or OWNER/NAME of the Hub"))
    if values.get("from_scratch"):
        problems.append(("from_scratch", "adapters need the weights of their base model"))
    if saved.weights and not spec.has_trained_head:
        names = ", ".join(sorted(saved.weights)[:SHOWN])
        what = f"the adapters in {saved.folder} replace the weights {names}"
        problems.append(("model", f"{what}, which {spec.name} does not train: {MERGE}"))
    if not spec.can_train_adapters or ("lora_r" in values and values["lora_r"] is None):
        return implied, problems
    return saved.fields | implied, [*problems, *_differences(values, saved)]


def _differences(values: Mapping[str, Any], saved: SavedAdapters) -> Iterator[Contradiction]:
    """Yield an error for each field of a recipe that contradicts the saved adapters."""
    for name, value in saved.fields.items():
        wanted = values.get(name, value)
        if name == "lora_dropout" or _comparable(wanted) == _comparable(value):
            continue
        shown = list(value) if isinstance(value, tuple) else value
        advice = f"set {name}={shown} or remove it"
        if name == "lora_r":
            advice += "; lora_r=null merges them into their base model and trains all weights"
        yield name, f"{name} is {wanted}, but the adapters in {saved.folder} have {shown}: {advice}"


def _comparable(value: Any) -> Any:
    return {*value} if isinstance(value, list | tuple) else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)
