"""The files that define how sentence-transformers turns token vectors into embeddings.

This module reads the files from a model's folder, and creates them for a new model. Standard
library only.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftcluster_common.data.data_files import DataError
from ftcluster_common.given_files import GivenFileError, read_json

MODULES = "modules.json"
ABOUT = "config_sentence_transformers.json"
POOLING = "1_Pooling"
LENGTH = "sentence_bert_config.json"
# flags that releases before 6 use instead of pooling_mode, by mode
FLAGS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
# names of prompts that encode_query and encode_document use (release 5)
QUERY, DOCUMENTS = "query", ("document", "passage", "corpus")
KINDS = {"Transformer", "Pooling", "Normalize"}
OF_EMBEDDERS = "Transformer, Pooling and Normalize"
SPLADE = "SpladePooling"  # the pooling module of a sparse encoder
SPARSE_KINDS = {"Transformer", "MLMTransformer", SPLADE}
SPLADE_CONFIG = {"pooling_strategy": "max", "activation_function": "relu"}
_CLASS = re.compile(r"sentence_transformers(?:\.[A-Za-z_]\w*)*\.([A-Za-z]+)", re.ASCII)
_PATH = re.compile(r"\w[\w-]*", re.ASCII)
HAS_SPARSE_ENCODER = "5.0.0"  # the first release with sparse encoders
READS_SIMILARITY = "3.0.0"  # the first release that reads similarity_fn_name


@dataclass(frozen=True)
class SentenceModules:
    """The modules after a transformer.

    Attributes:
        pooling: a key of FLAGS; SPLADE for a sparse encoder.
        normalize: True if embeddings are scaled to length 1.
        prompts: texts that sentence-transformers puts before inputs on request, by name.
        default_prompt: name of the prompt that is always used, or "".
        pools_prompt: True if the pooling includes the prompt's tokens.
        similarity: dot or cosine, which a search with the model uses.
    """

    pooling: str
    normalize: bool
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    pools_prompt: bool = True
    similarity: str = "cosine"

    @property
    def prompt(self) -> str:
        """The prompt that `encode` puts before each text."""
        return self.prompts.get(self.default_prompt or "", "")

    @property
    def search_prompts(self) -> tuple[str, str]:
        """The prompts that `encode_query` and `encode_document` use."""
        texts = (self.prompts[name] for name in DOCUMENTS if name in self.prompts)
        return self.prompts.get(QUERY, self.prompt), next(texts, self.prompt)


def read_modules(folder: Path, sparse: bool = False) -> SentenceModules | None:
    """Return the modules of a model's folder; None if sentence-transformers did not write it.

    Args:
        sparse: True for the modules of a sparse encoder (SPLADE).

    Raises:
        DataError: a file cannot be read, or the model has unsupported modules.
    """
    if not (folder / MODULES).is_file():
        return None
    try:
        modules = read_json(folder / MODULES)
        kinds = {_kind(module["type"]): _below(folder, module["path"]) for module in modules}
        supported, needed = (SPARSE_KINDS, SPLADE) if sparse else (KINDS, "Pooling")
        unknown = sorted(kinds.keys() - supported)
        if unknown or needed not in kinds:
            what = (
                f"the module {ascii(unknown[0][:100])[1:-1]}" if unknown else f"no module {needed}"
            )
            used = "MLMTransformer and SpladePooling" if sparse else OF_EMBEDDERS
            raise DataError(f"{folder / MODULES} has {what}; only {used} are used")
        config = read_json(kinds[needed] / "config.json")
        pooling = _splade(config) if sparse else _pooling(config)
        about = read_json(folder / ABOUT) if (folder / ABOUT).is_file() else {}
        return SentenceModules(
            pooling,
            "Normalize" in kinds,
            {name: str(text or "") for name, text in about.get("prompts", {}).items()},
            about.get("default_prompt_name"),
            config.get("include_prompt") is not False,
            "dot" if about.get("similarity_fn_name") == "dot" and not sparse else "cosine",
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        if isinstance(error, GivenFileError):  # names its file
            raise DataError(str(error)) from error
        why = f"{type(error).__name__}: {error}"
        raise DataError(
            f"{folder / MODULES} is not as sentence-transformers writes it ({why})"
        ) from error


def _kind(class_name: str) -> str:
    """Return the kind of module that a class name stands for, or an unknown name unchanged.

    An unknown class may be defined in a file of the folder. sentence-transformers 5 would execute
    this file.

    >>> _kind("sentence_transformers.models.Pooling"), _kind("evil.Pooling")
    ('Pooling', 'evil.Pooling')
    """
    match = _CLASS.fullmatch(class_name)
    return match[1] if match else class_name


def _below(folder: Path, path: str) -> Path:
    """Return the folder of a module.

    Raises:
        DataError: the path leads out of the model's folder.
    """
    if path and not _PATH.fullmatch(path):
        raise DataError(f"{folder / MODULES} has the path {path[:100]!a}, which is no folder in it")
    return folder / path


def _splade(config: Mapping[str, Any]) -> str:
    for name, value in SPLADE_CONFIG.items():
        if config.get(name, value) != value:
            raise DataError(
                f"the model's {SPLADE} has {name}={str(config[name])[:100]!a}, which is not "
                f"supported; {value} is"
            )
    return SPLADE


def _pooling(config: Mapping[str, Any]) -> str:
    chosen = config.get("pooling_mode")
    if chosen is None:
        chosen = [mode for mode, flag in FLAGS.items() if config.get(flag)] or "mean"
    modes = [chosen] if isinstance(chosen, str) else list(chosen)
    if len(modes) != 1 or modes[0] not in FLAGS:
        raise DataError(
            f"the model's pooling is {' + '.join(modes)}, which is not supported; choose one of "
            f"pooling={', '.join(FLAGS)}"
        )
    return str(modes[0])


def module_files(
    modules: SentenceModules, width: int, length: int, versions: Mapping[str, str]
) -> dict[str, Any]:
    """Return the files by name, in a format for sentence-transformers 3 and all later releases.

    Args:
        width: dimensions of an embedding.
        length: maximum tokens of a text.
        versions: versions of transformers and pytorch.
    """
    if modules.pooling == SPLADE:
        return _sparse_files(modules, width, length, versions)
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
        LENGTH: {"max_seq_length": length, "do_lower_case": False},
        ABOUT: {
            "__version__": {"sentence_transformers": READS_SIMILARITY, **versions},
            "model_type": "SentenceTransformer",
            "prompts": dict(modules.prompts),
            "default_prompt_name": modules.default_prompt,
            "similarity_fn_name": modules.similarity,
        },
        f"{POOLING}/config.json": {
            "word_embedding_dimension": width,
            **{flag: mode == modules.pooling for mode, flag in FLAGS.items()},
            "include_prompt": modules.pools_prompt,
        },
    }


def _sparse_files(
    modules: SentenceModules, width: int, length: int, versions: Mapping[str, str]
) -> dict[str, Any]:
    """Return the files of a sparse encoder, which sentence-transformers 5 and later can load."""
    kinds = {"MLMTransformer": "", SPLADE: f"1_{SPLADE}"}
    return {
        MODULES: [
            {
                "idx": number,
                "name": str(number),
                "path": path,
                "type": f"sentence_transformers.sparse_encoder.models.{kind}",
            }
            for number, (kind, path) in enumerate(kinds.items())
        ],
        LENGTH: {"max_seq_length": length, "do_lower_case": False},
        ABOUT: {
            "__version__": {"sentence_transformers": HAS_SPARSE_ENCODER, **versions},
            "model_type": "SparseEncoder",
            "prompts": dict(modules.prompts),
            "default_prompt_name": modules.default_prompt,
            "similarity_fn_name": "dot",
        },
        f"1_{SPLADE}/config.json": {**SPLADE_CONFIG, "word_embedding_dimension": width},
    }
