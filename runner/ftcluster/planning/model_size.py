"""Determine the size of a model before it is loaded, from its files or its configuration."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftcluster.planning.memory import ModelSize
from ftcluster_common.given_files import read_json
from ftcluster_common.models.safetensors_header import MOST, read_header
from ftcluster_common.recipe import split_revision

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
# fields of config.json for the number of layers, the width and so on, which differ by model type
# (attribute_map in transformers)
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers")
FEATURES = ("hidden_size", "n_embd", "dim", "d_model")
HEADS = (
    "num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"
)  # fmt: skip
INNER = ("intermediate_size", "n_inner", "hidden_dim", "ffn_dim", "d_ff", "encoder_ffn_dim")
DECODER_LAYERS = ("num_decoder_layers", "decoder_layers")
POSITIONS = ("max_position_embeddings", "n_positions")
# defaults of transformers 5.23 for model types that are often trained from scratch
_BERT = {
    "num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12,
    "intermediate_size": 3072, "max_position_embeddings": 512, "vocab_size": 30522,
}  # fmt: skip
DEFAULTS: Mapping[str, Mapping[str, int]] = {
    "bert": _BERT,
    "roberta": {**_BERT, "vocab_size": 50265},
    "distilbert": {
        "n_layers": 6, "dim": 768, "n_heads": 12, "hidden_dim": 3072,
        "max_position_embeddings": 512, "vocab_size": 30522,
    },
    "gpt2": {
        "n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257
    },
}  # fmt: skip


def model_size(folder: Path) -> ModelSize | None:
    """Return the size of a model from its safetensors files; None if these cannot be read."""
    try:
        shapes = [shape for file in _weight_files(folder) for shape in _shapes(file)]
        config = read_json(folder / "config.json")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # the ranks report the unreadable file
    if not shapes or not isinstance(config, dict):
        return None
    vocabulary = _first(config, ("vocab_size",))
    return ModelSize(
        parameters=sum(map(math.prod, shapes)),
        layers=_first(config, LAYERS),
        features=_first(config, FEATURES),
        heads=_first(config, HEADS),
        vocabulary=vocabulary,
        positions=_first(config, POSITIONS),
        embeddings=sum(
            math.prod(shape) for shape in shapes if len(shape) == 2 and shape[0] == vocabulary
        ),
        decoder_layers=_decoder_layers(config),
    )


def cached_size(name: str, environ: Mapping[str, str] = os.environ) -> ModelSize | None:
    """Return the size of a model on the Hub; None if this machine's Hub cache lacks the model."""
    home = environ.get("HF_HOME") or Path(
        environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface"
    )
    cache = Path(environ.get("HF_HUB_CACHE") or Path(home, "hub")).expanduser()
    plain, revision = split_revision(name)
    folder = cache / f"models--{plain.replace('/', '--')}"
    try:
        commit = (folder / "refs" / (revision or "main")).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        commit = revision or ""
    if not commit:
        return None
    snapshot = folder / "snapshots" / commit
    return model_size(snapshot) or size_from_scratch(str(snapshot), {})


def size_from_scratch(
    model: str, overrides: Mapping[str, Any], vocabulary: int | None = None
) -> ModelSize | None:
    """Estimate the size of a model from its configuration.

    Return None if the number or the width of the layers is not known. The estimate assumes a
    transformer whose layers have four square matrices, and two matrices with the inner width. It is
    within 1 % for BERT and GPT-2, and a rough estimate for other models.

    Args:
        model: a folder with config.json, or `config:TYPE`. For a type that is not in DEFAULTS, all
            values come from `overrides`.
        overrides: config_overrides of the recipe.
        vocabulary: vocabulary size of a tokenizer that is trained on the data; None without one.
    """
    try:
        config = read_json(Path(model) / "config.json")
        merged = {**config, **overrides}
    except (OSError, ValueError, TypeError):
        merged = {**DEFAULTS.get(model.removeprefix("config:"), {}), **overrides}
    layers, features = _first(merged, LAYERS), _first(merged, FEATURES)
    if not layers or not features:
        return None
    vocab_size = vocabulary or _first(merged, ("vocab_size",))
    inner = _first(merged, INNER) or 4 * features
    decoder_layers = _decoder_layers(merged)
    # each decoder layer of an encoder-decoder model has a second attention
    squares = 4 * (layers + 2 * decoder_layers)
    of_layers = squares * features**2 + (layers + decoder_layers) * 2 * features * inner
    return ModelSize(
        parameters=of_layers + (vocab_size + _first(merged, POSITIONS)) * features,
        layers=layers,
        features=features,
        heads=_first(merged, HEADS),
        vocabulary=vocab_size,
        embeddings=vocab_size * features,
        decoder_layers=decoder_layers,
    )


def _decoder_layers(config: Mapping[str, Any]) -> int:
    """Return the number of decoder layers of an encoder-decoder model; 0 for other models.

    The default is the number of encoder layers.
    """
    if not config.get("is_encoder_decoder"):
        return 0
    return _first(config, DECODER_LAYERS) or _first(config, LAYERS)


def _weight_files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    names = sorted(set(read_json(folder / INDEX)["weight_map"].values()))
    if any("/" in name or not (folder / name).is_file() for name in names):
        raise ValueError(f"{folder / INDEX} names a file that is not in its folder")
    return [folder / name for name in names]


def _shapes(file: Path) -> list[tuple[int, ...]]:
    """Read the shapes of the floating-point tensors in a file."""
    return [tensor.shape for tensor in read_header(file, whole=False).values() if tensor.is_float]


def _first(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    value = next((config[name] for name in names if name in config), 0)
    return value if isinstance(value, int) and 0 <= value < MOST else 0
