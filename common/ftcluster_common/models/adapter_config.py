"""Reads a folder of low-rank adapters in peft's format, so that a training can continue them.

Anybody may have written the files: types, tensor names and shapes are checked. Standard library
only.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftcluster_common.given_files import GivenFileError, read_json
from ftcluster_common.models.safetensors_header import TensorEntry, read_header
from ftcluster_common.tasks.registry import AnyTask
from ftcluster_common.tasks.spec import Contradiction

CONFIG, WEIGHTS, PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
BASE = "base_model_name_or_path"  # field of peft's files
PREFIX, PARTS, MAGNITUDE = "base_model.model.", ("lora_A", "lora_B"), "lora_magnitude_vector"
MERGE = "merge them with peft: merge_and_unload()"
SHOWN = 4  # maximum number of names in a message
# fields of peft's configuration that must have these values
PLAIN = {
    "peft_type": "LORA", "bias": "none", "use_qalora": False, "lora_bias": False,
    "rank_pattern": {}, "alpha_pattern": {}, "layer_replication": None, "target_parameters": None,
    "trainable_token_indices": None, "alora_invocation_tokens": None,
}  # fmt: skip
# methods of initialization that leave the base model's weights unchanged
INITIALIZATIONS = (True, False, None, "default", "gaussian", "orthogonal", "eva")
RESTRICTIONS = ("layers_to_transform", "exclude_modules")  # fields that restrict target_modules


@dataclass(frozen=True)
class SavedAdapters:
    """Low-rank adapters in a folder.

    Attributes:
        base: folder of the base model or its name on the Hub, with `@REVISION`; "" if not recorded.
        rank: number of rows of each matrix A.
        alpha: value of lora_alpha.
        dropout: dropout probability of the adapters' input.
        targets: names of the adapted layers, as in `lora_target_modules`.
        layers: number of outputs and inputs of each adapted layer, by name.
        weights: shapes of the weights that are saved in full, such as a classifier's head, by name.
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

    @property
    def fields(self) -> dict[str, Any]:
        """The recipe's fields for adapters like these."""
        return {
            "lora_r": self.rank, "lora_alpha": self.alpha, "lora_dropout": self.dropout,
            "lora_target_modules": self.targets, "use_rslora": self.use_rslora,
            "use_dora": self.use_dora,
        }  # fmt: skip


def has_only_adapters(folder: Path) -> bool:
    """Return True if a folder contains adapters but no complete model."""
    return (folder / CONFIG).is_file() and not (folder / "config.json").is_file()


def config_problems(config: Mapping[str, Any]) -> list[str]:
    """Return problems with peft's configuration: missing fields, and unsupported methods."""
    numbers = [config.get(name) for name in ("lora_alpha", "r")]
    if not all(_is_number(number) and number for number in numbers):
        return [f"{CONFIG} needs the numbers r and lora_alpha, which must not be 0"]
    targets = config.get("target_modules")
    if not isinstance(targets, str) and not _is_texts(targets):
        return [f"{CONFIG} has no list target_modules"]
    if not _is_texts(config.get("modules_to_save") or []):
        return [f"{CONFIG} has no list modules_to_save"]
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


def read_adapters(folder: Path) -> SavedAdapters:
    """Return the adapters in a folder, without the values of their weights.

    Raises:
        GivenFileError: a file is missing or damaged, or a training cannot continue such adapters;
            the message has all reasons and a remedy.
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
    tensors = read_header(folder / WEIGHTS)
    layers, weights, problems = _sorted_tensors(tensors, int(config["r"]), use_dora)
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
        bool(config.get("use_rslora")), use_dora, layers, weights,
    )  # fmt: skip


def _refusal(folder: Path, problems: list[str]) -> GivenFileError:
    shown = "; ".join(problems[:SHOWN])
    more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
    return GivenFileError(
        f"a training cannot continue the adapters in {folder}: {shown}{more}. Instead, {MERGE}, "
        "and train the merged model"
    )


def layer_and_part(saved: str) -> tuple[str, str]:
    """Split the name of a tensor in peft's file into a layer and the part of its adapter.

    The part of a weight that is saved in full is "".

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
    """Return the sizes of the adapted layers, the shapes of all other weights, and problems."""
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

    The adapters are trained on. If `values` set lora_r to None, or if the task trains no adapters,
    they are merged into their base model, and all weights are trained.

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
    """Yield contradictions between fields of a recipe and saved adapters."""
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
