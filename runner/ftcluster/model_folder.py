"""How large a model folder's model is, read from its headers without loading it."""

import json
import math
import struct
from pathlib import Path
from typing import Any

from ftcluster.planning.memory import ModelSize

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
MOST_HEADER_BYTES = 100 << 20  # the format's own limit (safetensors' README, Format)
# the names that types of models have for the same thing (transformers, attribute_map)
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
FEATURES = ("hidden_size", "n_embd", "dim", "d_model")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")


def model_size(folder: Path) -> ModelSize | None:
    """The size of a model; None where its weights are in another format or cannot be read."""
    try:
        parameters = sum(_parameters(file) for file in _weight_files(folder))
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error):
        return None  # the ranks say what is wrong with it, if anything is
    if not parameters or not isinstance(config, dict):
        return None
    return ModelSize(
        parameters=parameters,
        layers=_first(config, LAYERS),
        features=_first(config, FEATURES),
        heads=_first(config, HEADS),
        vocabulary=_first(config, ("vocab_size",)),
    )


def _weight_files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    return [folder / name for name in sorted(set(index["weight_map"].values()))]


def _parameters(file: Path) -> int:
    """The number of floating-point values in a file (safetensors' README, Format)."""
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        if length > MOST_HEADER_BYTES:
            raise ValueError(f"{file} has a header of {length} bytes")
        header = json.loads(stream.read(length))
    tensors = [tensor for name, tensor in header.items() if name != "__metadata__"]
    return sum(math.prod(one["shape"]) for one in tensors if one["dtype"].startswith(("F", "BF")))


def _first(config: dict[str, Any], names: tuple[str, ...]) -> int:
    found = next((config[name] for name in names if name in config), 0)
    return found if isinstance(found, int) else 0
