"""Check the local files and folders that a recipe names, and name their copies on hosts."""

import difflib
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ansible_collections.ftcluster.cluster.plugins.plugin_utils.source_files import (
    SourceError,
    open_file,
    source_files,
)

from ftcluster.errors import InputError, raise_together
from ftcluster.paths import plain_name
from ftcluster.recipe.dataset_checks import check_data
from ftcluster.recipe.trained_fields import run_hint
from ftcluster_common.data.data_files import CONLL, TABLES, TEXT, DataError
from ftcluster_common.given_files import GivenFileError, read_json
from ftcluster_common.models.adapter_config import WEIGHTS as ADAPTER_WEIGHTS
from ftcluster_common.models.adapter_config import has_only_adapters
from ftcluster_common.models.model_package import PACKAGE, name_of_folder
from ftcluster_common.models.sentence_modules import read_modules, read_multi_vector
from ftcluster_common.protocol.job import Purpose
from ftcluster_common.recipe import BY_TYPE, GENERATED, NEW_TOKENS, Recipe, split_revision

NEAR = 0.8  # minimum similarity of a suggested name
LIKE = 0.75  # minimum similarity of a mistyped extension to a known one: .cvs, .jsn, .paquet
# extensions of files with rows, of archives, and of files that ftcluster does not read
DATA_ENDINGS = (*TABLES, CONLL, TEXT, ".gz", ".zst", ".zip", ".xz", ".bz2", ".tar", ".xlsx", ".xls",
                ".arrow", ".feather", ".pkl", ".yaml", ".yml", ".xml", ".ndjson")  # fmt: skip
# hints for a path that does not exist, by the recipe's field
NEXT_STEP = {
    "data": "pass a file or a folder on this machine, or a data set on the Hub: --data OWNER/NAME",
    "model": "pass a folder on this machine, or a model on the Hub: --model OWNER/NAME",
}
WEIGHT_ENDINGS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".ckpt", ".onnx", ".h5", ".zip",
                  ".gz")  # fmt: skip

WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
           "pytorch_model.bin.index.json")  # fmt: skip
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json",
              "spiece.model", "tokenizer.model", "sentencepiece.bpe.model")  # fmt: skip
FIELDS = ("model", "tokenizer", "teacher", "adapter_base")
CHAT_TEMPLATES = ("chat_template.jinja", "tokenizer_config.json")
# model types that are encoders, unless their configuration sets is_decoder. The ranks check all
# other types
ENCODERS = frozenset(
    {"albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra", "modernbert",
     "mpnet", "roberta", "xlm-roberta"}
)  # fmt: skip
SHOWN = 4  # maximum number of tokens in a message
STATE = ("manifest.json", "state.json", "state.safetensors")  # files of a checkpoint


def copy_name(path: Path) -> str:
    """Return the name of a path's copy on hosts, with a digest of its files: mrpc-4f7d1c0b2a9e.

    Raises:
        InputError: the folder contains entries that cannot be copied, such as a link to a file
            outside the folder; the message lists all of them.
    """
    digest = hashlib.sha256()
    try:
        for real, name in source_files(path):
            with open_file(real) as content:
                size = os.fstat(content.fileno()).st_size
                digest.update(os.fsencode(f"{name if path.is_dir() else '.'}\0{size}\0"))
                digest.update(hashlib.file_digest(content, "sha256").digest())
    except SourceError as error:
        raise InputError(str(error)) from error
    except OSError as error:
        raise InputError(f"{error.filename} cannot be read: {error.strerror}") from error
    return f"{plain_name(name_of_folder(path.resolve()))}-{digest.hexdigest()[:12]}"


def check_inputs(recipe: Recipe, purpose: Purpose = "train") -> None:
    """Check the local files and folders that a recipe names. Names on the Hub are not checked.

    Raises:
        InputError: the inputs have problems; the message lists all of them.
    """
    problems: list[InputError] = []
    checks: list[tuple[str, str | None, Callable[[Path], None]]] = [
        *(
            ("data", part.source, partial(check_data, recipe=part, purpose=purpose))
            for part in recipe.by_set()
        ),
        ("model", recipe.model, lambda path: check_model_folder(path, recipe, purpose)),
        ("tokenizer", recipe.tokenizer, lambda path: check_tokenizer_folder(path, recipe)),
        ("adapter_base", recipe.adapter_base, lambda path: _check_base(path, recipe, purpose)),
        (
            "teacher",
            recipe.teacher,
            lambda path: _check_teacher(path, recipe),
        ),
    ]
    for field, value, check in checks:
        try:
            if value is not None and not is_elsewhere(value):
                if not (field == "adapter_base" and Path(value).is_absolute()):
                    check_exists(field, value)  # a base model may exist only on the hosts
                if Path(value).exists():
                    check(Path(value))
        except InputError as error:
            problems.append(error)
    try:
        check_checkpoint(str(recipe.training.resume_from_checkpoint or ""))
    except InputError as error:
        problems.append(error)
    if problems:
        raise InputError("\n".join(map(str, problems)))


def is_elsewhere(value: str) -> bool:
    """Return True if a value names neither a path nor the Hub.

    Such values name generated data, a model type or data of a package.
    """
    return value.startswith((GENERATED, BY_TYPE, PACKAGE))


def on_the_hub(value: str) -> bool:
    """Return True if a value is a name on the Hub, because no local file has that name."""
    return not is_elsewhere(value) and not Path(value).exists()


def hub_notes(recipe: Recipe) -> list[str]:
    """Return a note that lists the recipe's data and models on the Hub; empty if there are none."""
    values = [("data", data_set.path) for data_set in recipe.data_sets]
    values += [(field, getattr(recipe, field)) for field in FIELDS]
    names = [
        f"{field} {value}"
        for field, value in values
        if value and not value.startswith("/") and on_the_hub(value)
    ]
    if not names:
        return []
    return [
        f"from the Hugging Face Hub, because no file or folder here has that name: "
        f"{', '.join(names)}; contents from the Hub are read and checked only at launch"
    ]


def check_exists(field: str, value: str) -> None:
    """Check that a value is an existing local path, or may be a name on the Hub.

    Raises:
        InputError: the value is or resembles a path that does not exist; or the value is a path
            with a revision, which only names on the Hub can have.
    """
    path = Path(value)
    if path.exists():
        return
    plain, revision = split_revision(value)
    if revision is not None and (Path(plain).exists() or not plain or not revision):
        raise InputError(
            f"{field} {value}: @ must separate a name on the Hub from its revision",
            f"for the file or folder on this machine, remove @{revision}: {plain}"
            if plain and Path(plain).exists()
            else "write it as OWNER/NAME@REVISION",
        )
    path, folder = Path(plain), Path(plain).parent
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    near = _nearest(path.name, names)
    of_run = "" if field == "data" else run_hint(path)
    means_path = (
        bool(of_run)
        or plain.startswith((".", "/", "~"))
        or plain.endswith("/")
        or _names_a_file(field, path)
        or plain.count("/") > 1
        or ("/" in plain and folder.is_dir())
    )
    if not means_path and (field != "data" or not near):
        return
    hint = f"did you mean {folder / near}?" if near else NEXT_STEP.get(field, "")
    if field == "model" and "runs" in path.parts and not near:
        hint = "if this is a run's folder on the head, copy its model here: ftcluster fetch RUN"
    elif of_run:
        hint = of_run
    if not means_path:
        hint += " A name on the Hub has two parts: OWNER/NAME"
    raise InputError(f"{field} {value} does not exist", hint)


def _nearest(name: str, names: Sequence[str]) -> str:
    """Return the name most similar to `name`, with or without its extension; "" if none is."""
    spelt = {form: there for there in names for form in (there, Path(there).stem)}
    close = difflib.get_close_matches(name, spelt, n=1, cutoff=NEAR)
    return spelt[close[0]] if close else ""


def _names_a_file(field: str, path: Path) -> bool:
    """Return True if a path has the extension of a data or weight file, even if it is mistyped.

    The ends of names on the Hub do not resemble such extensions: `.5` in `bert-v1.5` contains no
    letters, and `.en` in `c4.en` is not similar to a known extension.
    """
    ending = path.suffix.lower()
    if field != "data":
        return ending in WEIGHT_ENDINGS
    return ending in DATA_ENDINGS or (
        ending[1:].isalpha() and bool(difflib.get_close_matches(ending, DATA_ENDINGS, 1, LIKE))
    )


def check_checkpoint(value: str) -> None:
    """Check that training can continue from a checkpoint in a folder on this machine.

    Raises:
        InputError: the folder is not an ftcluster checkpoint, and cannot be a path on the head.
    """
    if not value or (not Path(value).exists() and value.startswith("/")):
        return  # the checkpoint is on the head, where the ranks check it
    if not Path(value).is_dir():
        raise InputError(
            f"training.resume_from_checkpoint: '{value}' is neither a folder on this machine nor "
            "an absolute path on the head",
            "to continue a run from its newest checkpoint: ftcluster train --resume RUN",
        )
    missing = [name for name in STATE if not (Path(value) / name).is_file()]
    raise_together(
        [f"no {name}" for name in missing],
        f"{value} is not an ftcluster checkpoint",
        "to start only from the weights of a model: --model DIR",
    )


def check_model_folder(folder: Path, recipe: Recipe, purpose: Purpose = "train") -> None:
    """Check that `from_pretrained` can read a model's folder.

    The folder needs a configuration and, unless training starts from scratch, weights. It needs a
    tokenizer unless the recipe names one or trains one on the data. A folder with trained adapters
    does not need the weights of the base model, because the adapters name their base model and the
    hosts load it separately.

    Raises:
        InputError: the path is not a folder; the folder lacks its configuration, weights or
            tokenizer; or the model's kind does not fit the task.
    """
    if not folder.is_dir():
        raise InputError(f"model {folder} is not a folder")
    if has_only_adapters(folder):
        if (recipe.adapter_base or purpose != "train") and (folder / ADAPTER_WEIGHTS).is_file():
            return
        raise InputError(
            f"model {folder} contains adapters without their base model",
            "train again with merge_adapters=true, or merge the adapters into their base model "
            "with merge_and_unload() of peft",
        )
    if recipe.adapter_base:
        raise InputError(
            f"adapter_base names the base model of adapters, but {folder} contains a complete "
            "model, not adapters",
            "remove adapter_base",
        )
    problems: list[str] = []
    config: dict[str, Any] = {}
    if not (folder / "config.json").is_file():
        problems.append("no config.json")
    else:
        try:
            read = read_json(folder / "config.json")
            if isinstance(read, dict):
                config = read
            else:
                problems.append("config.json is not a JSON object")
        except GivenFileError as error:
            problems.append(str(error))
    if not recipe.from_scratch and not _has_one_of(folder, WEIGHTS):
        problems.append(f"no weights (one of {', '.join(WEIGHTS)})")
    made = recipe.from_scratch and recipe.spec.makes_tokenizer
    if not recipe.tokenizer and not made and not _has_one_of(folder, TOKENIZERS):
        problems.append(f"no tokenizer (one of {', '.join(TOKENIZERS)})")
    raise_together(
        problems,
        f"{folder} is not a Hugging Face model folder",
        run_hint(folder)
        or "save the model and its tokenizer with save_pretrained, which writes these files",
    )
    if quantized := config.get("quantization_config"):
        method = quantized.get("quant_method") if isinstance(quantized, dict) else "?"
        raise InputError(
            f"the weights in {folder} are already quantized ({method})",
            "use the model without quantization"
            + "; to train adapters in 4 bit: load_in_4bit=true" * recipe.spec.can_load_in_4bit,
        )
    kind = config.get("model_type")
    decodes = {**config, **recipe.config_overrides}.get("is_decoder")
    if recipe.spec.model_kind == "decoder" and kind in ENCODERS and not decodes:
        raise InputError(
            f"model {folder} is a {kind} model, which reads text in both directions, so it would "
            "see the tokens that it has to predict",
            "use a decoder, such as gpt2, or use this encoder as a decoder: "
            "config_overrides.is_decoder=true",
        )
    if recipe.spec.model_kind == "encoder-decoder" and kind in ENCODERS:
        raise InputError(
            f"model {folder} is a {kind} model, which is an encoder and cannot generate text",
            "use an encoder-decoder model, such as google/flan-t5-small or facebook/bart-base",
        )
    if not recipe.tokenizer and recipe.spec.uses_chat_template(recipe.options):
        check_tokenizer_folder(folder, recipe)
    if recipe.spec.reads_modules(recipe.options):
        sparse, several = recipe.spec.is_sparse_encoder, recipe.spec.is_multi_vector_encoder
        try:
            if not several or read_multi_vector(folder) is None:
                read_modules(folder, sparse)
        except DataError as error:
            advice = "set the pooling and normalization yourself: pooling=mean normalize=true"
            if sparse:
                advice = "use a masked language model, or a SPLADE model of this kind"
            if several:
                advice = "use an encoder without modules, or a ColBERT model of this kind"
            raise InputError(str(error), advice) from None


def _check_base(folder: Path, recipe: Recipe, purpose: Purpose) -> None:
    """Check the base model of adapters. The tokenizer may be in the folder of the adapters.

    Raises:
        InputError: see `check_model_folder`.
    """
    tokenizer = recipe.tokenizer
    if tokenizer is None and _has_one_of(Path(recipe.model), TOKENIZERS):
        tokenizer = recipe.model
        check_tokenizer_folder(Path(tokenizer), recipe)
    base = replace(recipe, model=str(folder), tokenizer=tokenizer, adapter_base=None)
    try:
        check_model_folder(folder, base, purpose)
    except InputError as error:
        raise InputError(f"adapter_base: {error.message}", error.hint) from None


def _check_teacher(folder: Path, recipe: Recipe) -> None:
    """Check a teacher's folder, and that its tokenizer has the recipe's new tokens if it must.

    The hosts compare the whole tokenizers, also if a teacher is on the Hub or has no
    tokenizer.json.

    Raises:
        InputError: see `check_model_folder`; or the teacher's tokenizer lacks a new token.
    """
    check_model_folder(folder, replace(recipe, from_scratch=False))
    if not recipe.spec.shares_tokenizer or not recipe.listed_tokens:
        return
    try:
        tokenizer = read_json(folder / TOKENIZERS[0])
        known = {token["content"] for token in tokenizer.get("added_tokens", ())}
        vocabulary = tokenizer["model"]["vocab"]  # a list of pairs in Unigram models
        known |= {*(vocabulary if isinstance(vocabulary, dict) else dict(vocabulary))}
    except (ValueError, LookupError, TypeError, AttributeError):
        return
    if missing := [token for token in recipe.listed_tokens if token not in known]:
        shown = ", ".join(f"{token[:40]!a}" for token in missing[:SHOWN])
        more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        fields = " and ".join(name for name in NEW_TOKENS if getattr(recipe, name))
        raise InputError(
            f"{fields}: the tokenizer of the teacher {folder} does not have {shown}{more}, but the "
            "teacher and the model that is trained must read the same tokens",
            f"train the teacher with the same {fields}, or remove these tokens",
        )


def check_tokenizer_folder(folder: Path, recipe: Recipe) -> None:
    """Check that a folder contains a tokenizer, and a chat template if the task needs one.

    Raises:
        InputError: the folder contains no tokenizer, or lacks a chat template that the task needs.
    """
    if not _has_one_of(folder, TOKENIZERS):
        raise InputError(f"{folder} has no tokenizer (one of {', '.join(TOKENIZERS)})")
    if recipe.spec.uses_chat_template(recipe.options) and not _has_chat(folder):
        raise InputError(
            f"{folder} has no chat template (in {', '.join(CHAT_TEMPLATES)})",
            "use a model or a tokenizer with a chat template (--model DIR, tokenizer=DIR); to "
            "train on prompts and completions without a template: chat_template=false",
        )


def _has_chat(folder: Path) -> bool:
    if (folder / CHAT_TEMPLATES[0]).is_file():
        return True
    try:
        config = read_json(folder / CHAT_TEMPLATES[1])
        return bool(config.get("chat_template"))
    except (ValueError, AttributeError):
        return False


def _has_one_of(folder: Path, names: Sequence[str]) -> bool:
    return any((folder / name).is_file() for name in names)
