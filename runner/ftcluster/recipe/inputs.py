"""Checks of the folders of this machine that a recipe names, and names for their copies."""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from ftcluster.errors import InputError, raise_together
from ftcluster.paths import plain_name
from ftcluster.recipe.dataset_checks import check_data_folder
from ftcluster_common.recipe import CausalLm, Recipe

WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
           "pytorch_model.bin.index.json")  # fmt: skip
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json",
              "spiece.model", "tokenizer.model", "sentencepiece.bpe.model")  # fmt: skip
STATE = ("manifest.json", "state.json", "state.safetensors")  # of a checkpoint


def folder_name(folder: Path) -> str:
    """A name that changes with the folder's files: mrpc-4f7d1c0b2a9e."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(os.fsencode(f"{path.relative_to(folder)}\0{path.stat().st_size}\0"))
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return f"{plain_name(folder.resolve().name)}-{digest.hexdigest()[:12]}"


def check_inputs(recipe: Recipe) -> None:
    """Check the folders of this machine that a recipe names; names are left to the hosts.

    Raises:
        InputError: all problems of all of them.
    """
    problems: list[InputError] = []
    for value, check in (
        (recipe.data, check_data_folder),
        (recipe.model, check_model_folder),
        (recipe.tokenizer, check_tokenizer_folder),
    ):
        try:
            if value is not None and means_a_folder(value):
                check(Path(value), recipe)
        except InputError as error:
            problems.append(error)
    try:
        check_checkpoint(str(recipe.training.resume_from_checkpoint or ""))
    except InputError as error:
        problems.append(error)
    if problems:
        raise InputError("\n".join(map(str, problems)))


def means_a_folder(value: str) -> bool:
    """Whether a value means a folder of this machine, which may not exist."""
    return value.startswith((".", "/")) or value.endswith("/") or Path(value).is_dir()


def check_checkpoint(value: str) -> None:
    """Make sure that a training can be continued from a folder of this machine.

    Raises:
        InputError: it is no checkpoint of ftcluster, nor can it be a path on the head.
    """
    if not value or (not Path(value).exists() and value.startswith("/")):
        return  # the ranks look for it on the head
    if not Path(value).is_dir():
        raise InputError(
            f"training.resume_from_checkpoint: '{value}' is neither a folder of this machine nor "
            "an absolute path on the head",
            "ftcluster train --resume RUN continues a run from its newest checkpoint",
        )
    missing = [name for name in STATE if not (Path(value) / name).is_file()]
    raise_together(
        [f"no {name}" for name in missing],
        f"{value} is not a checkpoint of ftcluster",
        "to start from its weights only: --model DIR",
    )


def check_model_folder(folder: Path, recipe: Recipe) -> None:
    """Make sure that `from_pretrained` can read a folder.

    Training from scratch needs only a configuration. No tokenizer is needed if the recipe names
    one, or if one is trained on the data.

    Raises:
        InputError: it does not exist, or lacks its configuration, weights or tokenizer.
    """
    if not folder.is_dir():
        raise InputError(f"model folder {folder} does not exist")
    problems: list[str] = []
    config = folder / "config.json"
    if not config.is_file():
        problems.append("no config.json")
    else:
        try:
            if not isinstance(json.loads(config.read_text(encoding="utf-8")), dict):
                problems.append("config.json is not a JSON object")
        except ValueError as error:
            problems.append(f"config.json is not JSON: {error}")
    if not recipe.from_scratch and not _has_one_of(folder, WEIGHTS):
        problems.append(f"no weights (one of {', '.join(WEIGHTS)})")
    made = recipe.from_scratch and isinstance(recipe.options, CausalLm)
    if not recipe.tokenizer and not made and not _has_one_of(folder, TOKENIZERS):
        problems.append(f"no tokenizer (one of {', '.join(TOKENIZERS)})")
    raise_together(
        problems,
        f"{folder} is not a Hugging Face model folder",
        "save_pretrained of the model and of the tokenizer writes these files",
    )


def check_tokenizer_folder(folder: Path, _recipe: Recipe) -> None:
    """Make sure that a folder has a tokenizer.

    Raises:
        InputError: it does not exist or has none.
    """
    if not folder.is_dir():
        raise InputError(f"tokenizer folder {folder} does not exist")
    if not _has_one_of(folder, TOKENIZERS):
        raise InputError(f"{folder} has no tokenizer (one of {', '.join(TOKENIZERS)})")


def _has_one_of(folder: Path, names: Sequence[str]) -> bool:
    return any((folder / name).is_file() for name in names)
