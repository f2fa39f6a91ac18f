"""Check that no file of a model's folder can run or download code, before a library loads it.

Libraries can run a model's code in several ways: Python files that a configuration names, pickled
weights, classes with dotted names, and kernels from the Hub. ftcluster's training writes none of
these. The check therefore allows only the kinds of files that training writes, and only settings
that name no code. It does not check the contents of weights, texts and tokens.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ftcluster.text.printable import in_one_line
from ftcluster_common.data.data_files import DataError
from ftcluster_common.given_files import GivenFileError, read_json
from ftcluster_common.models.adapter_config import CONFIG as ADAPTERS
from ftcluster_common.models.adapter_config import TOKEN_IDS, ids_by_layer
from ftcluster_common.models.model_package import PACKAGE
from ftcluster_common.models.row_hashes import ROWS
from ftcluster_common.models.sentence_modules import (
    LENGTH,
    MODULES,
    read_modules,
    read_multi_vector,
)
from ftcluster_common.models.trained_model import FILE
from ftcluster_common.recipe import split_revision

# extensions of weights, tokenizers and texts. Pickles (*.bin, *.pt) are not allowed, because a
# pickle may call any function when it is loaded
KNOWN_ENDS = (
    ".json", ".safetensors", ".txt", ".model", ".jinja", ".md", ".spm", ".vocab", ".codes", ".bpe",
    ".tiktoken",
)  # fmt: skip
KNOWN_NAMES = (ROWS, "LICENSE", "NOTICE", ".gitattributes", ".gitignore")
# files whose keys are not settings; in tokenizer files, the keys are tokens
NO_SETTINGS = ("tokenizer.json", "vocab.json", "added_tokens.json", MODULES, FILE)
NAMES_CODE = ("auto_map", "custom_pipelines", "auto_mapping", "trust_remote_code")
ACTIVATIONS = ("activation_fn", "sbert_ce_default_activation_function")
ACTIVATION = re.compile(r"torch\.nn\.(modules\.\w+\.)?(Identity|ReLU|Sigmoid|Softmax|Tanh)")
# adapter settings that training and peft write. peft imports the module that megatron_core names,
# so the value in PEFT_DEFAULTS is the only one that is allowed
OF_ADAPTERS = (
    "base_model_name_or_path", "revision", "bias", "fan_in_fan_out", "inference_mode", "lora_alpha",
    "lora_dropout", "modules_to_save", "r", "target_modules", "task_type", TOKEN_IDS, "use_rslora",
    "use_dora", "peft_version", "qalora_group_size",
)  # fmt: skip
PEFT_DEFAULTS = {"init_lora_weights": True, "megatron_core": "megatron.core", "peft_type": "LORA"}
IMPLEMENTATION = "_implementation"  # suffix of settings that may name a kernel of the Hub
LENGTH_KEYS = {
    *("max_seq_length", "do_lower_case"),
    *("query_length", "document_length", "query_expansion"),  # of multi-vector encoders
}
INDEX = ".index.json"  # suffix of files that list a model's weights
WEIGHTS = re.compile(r"[\w-]+(\.[\w-]+)*\.safetensors", re.ASCII)
ON_THE_HUB = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
MOST_FILES = 10_000
SHOWN = 8


def unknown_files(folder: Path) -> list[str]:
    """Return the files in a folder that training does not write, such as Python files."""
    unknown = []
    seen = 0
    for above, folders, files in os.walk(folder):
        linked = [name for name in folders if Path(above, name).is_symlink()]
        seen += len(files)
        for name in (*linked, *files):
            is_known = name.lower().endswith(KNOWN_ENDS) or name in KNOWN_NAMES
            if name in linked or not is_known:
                unknown.append(str(Path(above, name).relative_to(folder)))
        if seen > MOST_FILES:
            unknown.append(f"more than {MOST_FILES:,} files")
            break
    return sorted(unknown)


def code_problems(folder: Path) -> list[str]:
    """Return the files and settings of a model's folder that may run code; empty if it is safe."""
    problems = []
    if unknown := unknown_files(folder):
        problems.append(f"files that ftcluster's training does not write: {listed(unknown)}")
    for path in sorted(folder.rglob("*.json")):
        if path.name in NO_SETTINGS:
            continue
        try:
            settings = read_json(path)
        except GivenFileError as error:
            problems.append(str(error))
            continue
        name = path.relative_to(folder)
        try:
            problems += [f"{name} sets {what}" for what in _settings_with_code(settings)]
        except RecursionError:
            problems.append(f"{name} is nested too deeply")
        if not isinstance(settings, dict):
            problems.append(f"{name} is not a JSON object")
        elif path.name == LENGTH and settings.keys() - LENGTH_KEYS:
            problems.append(f"{name} sets {listed(sorted(settings.keys() - LENGTH_KEYS))}")
        elif path.name.endswith(INDEX):
            problems += _of_index(str(name), settings.get("weight_map"))
    problems += _of_modules(folder)
    return [*problems, *_of_adapters(folder)]


def listed(names: list[str]) -> str:
    """Join the first few names into one line of text, with control characters escaped."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(in_one_line(name) for name in names[:SHOWN]) + more


def _settings_with_code(settings: Any) -> Iterator[str]:
    """Yield settings, at any depth, that make a library import or download code."""
    if isinstance(settings, list):
        for part in settings:
            yield from _settings_with_code(part)
    if not isinstance(settings, dict):
        return
    for name, value in settings.items():
        if name in NAMES_CODE and value:
            yield name
        elif name in ACTIVATIONS:
            if value is not None and not ACTIVATION.fullmatch(str(value)):
                yield f"{name}={str(value)[:60]!a}"
        elif name.endswith(IMPLEMENTATION):
            parts = value.values() if isinstance(value, dict) else [value]
            if not all(part is None or (isinstance(part, str) and part.isidentifier())
                       for part in parts):  # fmt: skip
                yield f"{name}={str(value)[:60]!a}"
        else:
            yield from _settings_with_code(value)


def _of_index(name: str, files: Any) -> Iterator[str]:
    """Yield a problem if an index names files other than safetensors weights in its own folder."""
    names = [*files.values()] if isinstance(files, dict) else [files]
    others = [name for name in names if not isinstance(name, str) or not WEIGHTS.fullmatch(name)]
    if others:
        yield f"{name} names {str(others[0])[:100]!a}, which is not a safetensors file beside it"


def _of_modules(folder: Path) -> Iterator[str]:
    try:
        if read_multi_vector(folder) is None:
            read_modules(folder)
    except DataError as error:
        try:
            read_modules(folder, sparse=True)
        except DataError:
            yield str(error)


def _of_adapters(folder: Path) -> Iterator[str]:
    """Yield problems with an adapter's settings and base model, which libraries load too."""
    if not (folder / ADAPTERS).is_file():
        return
    try:
        settings = read_json(folder / ADAPTERS)
    except GivenFileError:
        return  # `code_problems` reports the unreadable file
    if not isinstance(settings, dict):
        return
    others = [
        name
        for name, value in settings.items()
        if name not in (*OF_ADAPTERS, *NAMES_CODE) and value and value != PEFT_DEFAULTS.get(name)
    ]
    if others:
        names = listed(sorted(others))
        yield f"{ADAPTERS} contains settings that ftcluster's training does not write: {names}"
    try:
        ids_by_layer(settings)
    except ValueError as error:
        yield str(error)
    base = settings.get("base_model_name_or_path")
    if not isinstance(base, str):
        yield f"{ADAPTERS} does not name the adapters' base model"
    elif os.path.isdir(base):  # noqa: PTH112  Path.is_dir raises if a name is too long
        if (Path(base) / ADAPTERS).is_file():
            yield f"{ADAPTERS} names {base[:200]!a} as the base model, which is itself an adapter"
        else:
            yield from (f"{base}: {what}" for what in code_problems(Path(base)))
    elif base.startswith(PACKAGE):
        yield (
            f"{ADAPTERS} names a base model in a Python package, {base[:200]!a}, from which "
            "transformers and peft load no model: train with merge_adapters=true"
        )
    elif not ON_THE_HUB.fullmatch(split_revision(base)[0]):
        yield f"{ADAPTERS} names {base[:200]!a}, neither a folder here nor a name on the Hub"
