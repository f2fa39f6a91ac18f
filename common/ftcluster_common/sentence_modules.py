"""The files by which sentence-transformers knows how a model makes embeddings of its tokens.

Read in a model's folder, and written into one. Standard library only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftcluster_common.data_files import DataError
from ftcluster_common.given_files import read_json

MODULES = "modules.json"
ABOUT = "config_sentence_transformers.json"
POOLING = "1_Pooling"
# what pooling_mode was before release 6: a flag for each mode
FLAGS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
KNOWN = ("mean", "cls")
READS_SIMILARITY = "3.0.0"  # the first release that reads similarity_fn_name


@dataclass(frozen=True)
class SentenceModules:
    """What follows a transformer.

    Attributes:
        pooling: mean or cls.
        normalize: whether embeddings get length 1.
        prompts: that sentence-transformers puts before texts, if it is asked to.
        default_prompt: the one that it puts there anyway.
    """

    pooling: str
    normalize: bool
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None


def read_modules(folder: Path) -> SentenceModules | None:
    """What a model's folder says; None if sentence-transformers has not written it.

    Raises:
        DataError: it cannot be read, or has modules that cannot be trained here.
    """
    if not (folder / MODULES).is_file():
        return None
    try:
        modules = read_json(folder / MODULES)
        kinds = {module["type"].rpartition(".")[2]: folder / module["path"] for module in modules}
        unknown = sorted(kinds.keys() - {"Transformer", "Pooling", "Normalize"})
        if unknown or "Pooling" not in kinds:
            what = f"the module {unknown[0]}" if unknown else "no module Pooling"
            raise DataError(
                f"{folder / MODULES} has {what}; trained are Transformer, Pooling and Normalize"
            )
        pooling = _pooling(read_json(kinds["Pooling"] / "config.json"))
        about = read_json(folder / ABOUT) if (folder / ABOUT).is_file() else {}
        return SentenceModules(
            pooling,
            "Normalize" in kinds,
            {name: text for name, text in about.get("prompts", {}).items() if text},
            about.get("default_prompt_name"),
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{folder / MODULES} cannot be used: {error!r}") from error


def _pooling(config: Mapping[str, Any]) -> str:
    found = config.get("pooling_mode")
    if found is None:
        found = [mode for mode, flag in FLAGS.items() if config.get(flag)] or "mean"
    modes = [found] if isinstance(found, str) else list(found)
    if len(modes) > 1 or modes[0] not in KNOWN:
        raise DataError(
            f"the model's pooling is {', '.join(modes)}; pooling=mean or pooling=cls trains another"
        )
    return str(modes[0])


def module_files(
    modules: SentenceModules, width: int, length: int, versions: Mapping[str, str]
) -> dict[str, Any]:
    """The documents by their names, in the form that all releases from 3 on read.

    Args:
        width: of an embedding.
        length: tokens of a text, at most.
        versions: of transformers and pytorch.
    """
    kinds = ["Transformer", "Pooling", *(["Normalize"] if modules.normalize else [])]
    return {
        MODULES: [
            {
                "idx": number,
                "name": str(number),
                "path": f"{number}_{kind}" if number else "",
                "type": f"sentence_transformers.models.{kind}",
            }
            for number, kind in enumerate(kinds)
        ],
        "sentence_bert_config.json": {"max_seq_length": length, "do_lower_case": False},
        ABOUT: {
            "__version__": {"sentence_transformers": READS_SIMILARITY, **versions},
            "model_type": "SentenceTransformer",
            "prompts": dict(modules.prompts),
            "default_prompt_name": modules.default_prompt,
            "similarity_fn_name": "cosine",
        },
        f"{POOLING}/config.json": {
            "word_embedding_dimension": width,
            **{flag: mode == modules.pooling for mode, flag in FLAGS.items()},
            "include_prompt": True,
        },
    }
