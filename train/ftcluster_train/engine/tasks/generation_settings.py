"""Generation settings: reading them from a model's folder, and writing them for a decoder."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import GenerationConfig, PreTrainedTokenizerBase
from transformers.utils import GENERATION_CONFIG_NAME

from ftcluster_common.given_files import read_json
from ftcluster_common.models.adapter_config import CONFIG as ADAPTERS

if TYPE_CHECKING:
    from transformers import PreTrainedModel

KEPT = {"decoder_start_token_id", "bos_token_id"}  # settings that reset_generation keeps
# the ends of notices about inherited settings: a consequence, and a remedy
FORBIDDEN = "generation forbids, so the model cannot write them"
RESET = "to drop the model's generation settings, train with reset_generation=true"
SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")


def read_generation_settings(folder: Path) -> dict[str, Any]:
    """Return the generation settings in a model's folder; older models keep them in config.json.

    Raises:
        GivenFileError: the file is damaged.
    """
    for name in (GENERATION_CONFIG_NAME, "config.json"):
        if (folder / name).is_file():
            document = read_json(folder / name)
            settings = document.items() if isinstance(document, dict) else ()
            return {key: value for key, value in settings if value is not None}
    return {}


def read_vocabulary_size(folder: Path) -> int:
    """Return the number of token embeddings from a model's config.json; 0 if it is missing there.

    Raises:
        GivenFileError: the file is damaged.
    """
    path = folder / "config.json"
    config = read_json(path) if path.is_file() else None
    while isinstance(config, dict):
        if isinstance(size := config.get("vocab_size"), int):
            return size
        config = config.get("text_config")
    return 0


def kept_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that reset_generation keeps."""
    return {name: settings[name] for name in KEPT & settings.keys()}


def plain_settings(
    inherited: GenerationConfig, tokenizer: PreTrainedTokenizerBase, **more: Any
) -> GenerationConfig:
    """Return generation settings that contain only the special tokens.

    Args:
        more: further settings to include.
    """
    first = {name: getattr(inherited, name, None) for name in KEPT}
    return GenerationConfig(
        **{name: value for name, value in first.items() if value is not None},
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        **more,
    )


def outside_vocabulary(settings: Mapping[str, Any], size: int) -> Iterator[tuple[str, int]]:
    """Yield each setting that names a special token outside the vocabulary, with the token's id.

    Args:
        size: number of token embeddings; 0 if unknown.
    """
    for name in SPECIAL if size else ():
        yield from (
            (name, token) for token in token_list(settings.get(name)) if not 0 <= token < size
        )


def padding_of(tokenizer: PreTrainedTokenizerBase, size: int) -> int | None:
    """Return the id of a padding token that the model has, or None.

    Args:
        size: number of token embeddings.
    """
    ids = (tokenizer.pad_token_id, tokenizer.eos_token_id)
    return next((token for token in ids if token is not None and 0 <= token < size), None)


def repair_settings(
    model: "PreTrainedModel", folder: Path, end: int | None, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Repair a saved decoder's generation_config.json, so that generation stops and can pad.

    The token that ends a training text is added to the end tokens, because the settings of base
    models contain only the end-of-text token. If the model lacks the padding token, the setting is
    replaced.

    For adapters the file contains only the end tokens, for `generation.load_decoder`, because
    transformers reads all settings from the base model.

    Args:
        folder: folder of the saved model.
        end: id of the token that ends a training text; None if there is no such token.
    """
    repaired: dict[str, Any] = {}
    ends = token_list(model.generation_config.eos_token_id)
    if end is not None and end not in ends:
        repaired["eos_token_id"] = [*ends, end]
    padding = model.generation_config.pad_token_id
    count = model.get_input_embeddings().num_embeddings
    if padding is not None and not 0 <= padding < count and not (folder / ADAPTERS).exists():
        repaired["pad_token_id"] = padding_of(tokenizer, count)
    if not repaired:
        return
    path = folder / GENERATION_CONFIG_NAME
    written = (read_json(path) if path.exists() else {}) | repaired
    text = json.dumps(
        {name: value for name, value in written.items() if value is not None}, indent=2
    )
    path.write_text(text + "\n", encoding="utf-8")


def whole_number(value: Any) -> int:
    """Return a setting as an integer; 0 if it is absent, infinite, or has another type."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_number and math.isfinite(value) else 0


def token_list(value: Any) -> list[int]:
    """Return the tokens of a setting that holds one token or a list of tokens."""
    values = value if isinstance(value, list) else [value]
    return [token for token in values if isinstance(token, int) and not isinstance(token, bool)]


def forbidden_words(settings: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """Return the token sequences in bad_words_ids, except end tokens, as in transformers."""
    value, ends = settings.get("bad_words_ids"), token_list(settings.get("eos_token_id"))
    words = [token_list(word) for word in value] if isinstance(value, list) else []
    return [tuple(word) for word in words if word and word not in [[end] for end in ends]]


def grams(tokens: Sequence[int], size: int) -> set[tuple[int, ...]]:
    """Return the distinct sequences of `size` consecutive tokens."""
    if size < 1:
        return set()
    return {tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)}


def repeats(tokens: Sequence[int], size: int, start: int = 0) -> bool:
    """Return True if `size` consecutive tokens repeat earlier ones and end at `start` or later.

    Args:
        start: index of the first token in which a repetition may end.
    """
    if size < 1:
        return False
    seen: set[tuple[int, ...]] = set()
    for stop in range(size, len(tokens) + 1):
        gram = tuple(tokens[stop - size : stop])
        if stop > start and gram in seen:
            return True
        seen.add(gram)
    return False
