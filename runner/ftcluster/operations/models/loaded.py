"""Load a trained model in this Python process, and write the caller's rows of data to a file."""

import hashlib
import importlib
import json
from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ftcluster.errors import FtclusterError, InputError, UsageError, raise_together
from ftcluster.paths import state_dir, write_atomically
from ftcluster.recipe.data_sets import SETTINGS
from ftcluster.recipe.model_code import code_problems
from ftcluster.recipe.trained_fields import run_hint, trained_fields
from ftcluster.user_script.own_code import read_code
from ftcluster_common.given_files import read_json
from ftcluster_common.models.adapter_config import CONFIG as ADAPTERS
from ftcluster_common.models.adapter_config import rows_needed
from ftcluster_common.models.sentence_modules import MODULES
from ftcluster_common.models.trained_model import pipeline_of, read_trained
from ftcluster_common.tasks.registry import TASKS, AnyTask

FRAMES = "frames"  # folder for rows in memory, in the state folder
PACKAGES = "install it in a separate environment: pip install '{}' 'torch>=2.10'"
# oldest releases in which trust_remote_code=False has no known bypass (CVE-2026-5241; modules.json)
SAFE_RELEASES = {"transformers": "5.10", "sentence-transformers": "6.2"}


@runtime_checkable
class Frame(Protocol):
    """A table that writes itself as JSON lines, such as a pandas DataFrame."""

    def to_json(self, *, orient: str, lines: bool, date_format: str, force_ascii: bool) -> Any:
        """Return the rows as text, one JSON object per line."""


Data = str | PathLike[str] | Frame | Sequence[Mapping[str, Any]]
Several = Sequence[Data | Mapping[str, Any]]  # data sets; a mapping is an entry as in a recipe


def data_paths(data: Data | Several) -> str | tuple[str | Mapping[str, Any], ...]:
    """Return the path or name of data; for a list of data sets, a tuple of paths, names or entries.

    A list of mappings is a list of rows, unless each mapping has the form of an entry in a recipe's
    `data`.

    Raises:
        InputError: rows cannot be written as JSON, or there are none.
    """
    if isinstance(data, str | PathLike | Frame) or not isinstance(data, Sequence):
        return data_path(data)
    if not data or not all(map(_is_set, data)):
        return data_path(data)  # type: ignore[arg-type]
    return tuple(
        _entry(data_set) if isinstance(data_set, Mapping) else data_path(data_set)
        for data_set in data
    )


def _is_set(item: Any) -> bool:
    """Return True if an item of a list is a data set, and not a row."""
    if not isinstance(item, Mapping):
        return True
    fields = {name for spec in TASKS.values() for name in spec.fields_of_a_set}
    return "path" in item and {*item} <= {*SETTINGS, *fields}


def _entry(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**entry, "path": data_path(entry["path"])}


def data_path(data: Data) -> str:
    """Return the path or name of data. Rows in memory are first written to a file.

    The file is in the state folder, and equal rows share a file. The file is never removed, because
    a run on this machine reads it in place.

    Raises:
        InputError: the rows cannot be written as JSON, or there are none.
    """
    if isinstance(data, str | PathLike):
        return fspath(data)
    try:
        if isinstance(data, Frame):
            text = str(
                data.to_json(orient="records", lines=True, date_format="iso", force_ascii=False)
            )
        else:
            text = "".join(f"{json.dumps(dict(row), ensure_ascii=False)}\n" for row in data)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the rows cannot be written as JSON: {error}",
            "pass strings, numbers, and lists of strings and numbers",
        ) from error
    if not text.strip():
        raise InputError("the data contain no rows")
    content = text.encode(errors="surrogatepass")
    path = state_dir() / FRAMES / f"rows-{hashlib.sha256(content).hexdigest()[:12]}.jsonl"
    if not path.exists():
        write_atomically(path, content)
    return str(path)


def load(folder: Path, task_file: str = "", **options: Any) -> Any:
    """Load a model's folder with the library of the model's task.

    The folder is checked first. Files that may run as code are refused, so loading is safe with
    every release of the library.

    Args:
        folder: folder with the trained model.
        task_file: the user's Python file that defines the model's task; "" for a built-in task.
        options: keyword arguments for the library's loading function.

    Returns:
        A SentenceTransformer, CrossEncoder, SparseEncoder or MultiVectorEncoder of
        sentence-transformers, or a pipeline of transformers; if there is no pipeline for the task,
        the model and its tokenizer.

    Raises:
        FtclusterError: the folder does not exist, was not written by ftcluster's training, or
            contains files that may run as code; or a Python package is missing.
        UsageError: `options` contains trust_remote_code=True.
    """
    if options.get("trust_remote_code"):
        raise UsageError(
            "trust_remote_code=True is not supported: ftcluster.load never runs code from a "
            "model's folder",
            "to load a model that you trust, use transformers or sentence-transformers directly",
        )
    read_code(task_file)
    trained = trained_fields(folder)
    task = trained.task
    spec = TASKS.get(task)
    ranks = spec is not None and spec.is_cross_encoder
    if not folder.is_dir():
        raise FtclusterError(
            f"there is no folder {folder}", "to copy a run's model here: ftcluster fetch RUN"
        )
    if trained.unknown_task:
        raise FtclusterError(
            f"{folder} was trained for the task {trained.unknown_task}, which ftcluster does not "
            "know",
            'pass the file that defines the task: ftcluster.load(MODEL, task="FILE.py")',
        )
    if not task and not (folder / MODULES).is_file():
        raise FtclusterError(
            f"{folder} contains no {trained.missing}, so the model's task is unknown",
            run_hint(folder)
            or "pass a folder that ftcluster's training wrote, or use transformers' "
            "pipeline(TASK, FOLDER)",
        )
    adapted = (folder / ADAPTERS).is_file()
    if ranks and adapted:
        raise FtclusterError(
            f"{folder} contains adapters, but CrossEncoder ignores a head saved with adapters",
            f"train with merge_adapters=true, or load the adapters as {folder / 'README.md'} shows",
        )
    raise_together(
        code_problems(folder),
        f"{folder} is not loaded, because its files may run or download code",
        "pass a folder that ftcluster's training wrote, or load a model that you trust with its "
        "own library",
    )
    options["trust_remote_code"] = False
    if (folder / MODULES).is_file() or ranks:
        sparse = spec is not None and spec.is_sparse_encoder
        several = spec is not None and spec.is_multi_vector_encoder
        kind = "CrossEncoder" if ranks else "SparseEncoder" if sparse else "SentenceTransformer"
        kind = "MultiVectorEncoder" if several else kind
        return getattr(_package("sentence_transformers"), kind)(str(folder), **options)
    if adapted:
        _package("peft")
    transformers, name = _package("transformers"), str(folder)
    if adapted and spec is not None and rows_needed(read_json(folder / ADAPTERS)):
        model = _with_token_rows(transformers, folder, spec)
        options |= {"model": model, "tokenizer": name}
        if spec.auto_class:
            return model, transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        return transformers.pipeline(pipeline_of(task, trained.options), **options)
    if spec is not None and spec.auto_class:
        classes = _classes(transformers, folder) if adapted else {}
        model = getattr(transformers, spec.auto_class).from_pretrained(name, **classes, **options)
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        return model, tokenizer
    if spec is not None and adapted and (classes := _classes(transformers, folder)):
        # a pipeline would load the base model's classes
        auto_class = getattr(transformers, f"AutoModelFor{spec.exported_as}")
        options["model"] = auto_class.from_pretrained(name, trust_remote_code=False, **classes)
        options["tokenizer"] = name
    pipeline = pipeline_of(task, trained.options)
    return transformers.pipeline(pipeline, **{"model": name, **options})


def _with_token_rows(transformers: Any, folder: Path, spec: AnyTask) -> Any:
    """Return the base model of adapters, with the adapters and their rows of new tokens merged.

    transformers does not load such adapters itself, because the base model may lack these rows.
    """
    saved = read_json(folder / ADAPTERS)
    auto_class = getattr(transformers, spec.auto_class or f"AutoModelFor{spec.exported_as}")
    base = auto_class.from_pretrained(
        saved["base_model_name_or_path"], revision=saved.get("revision") or "main",
        trust_remote_code=False, **_classes(transformers, folder),
    )  # fmt: skip
    if (rows := rows_needed(saved)) > base.get_input_embeddings().num_embeddings:
        base.resize_token_embeddings(rows)
    return _package("peft").PeftModel.from_pretrained(base, str(folder)).merge_and_unload()


def _classes(transformers: Any, folder: Path) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` for the classes of a classifier's adapters."""
    head = read_trained(folder).get("head", {})
    if "classes" not in head:
        return {}
    numbers = dict(enumerate(head["classes"]))
    config = transformers.AutoConfig.from_pretrained(
        read_json(folder / ADAPTERS)["base_model_name_or_path"], id2label=numbers,
        label2id={name: number for number, name in numbers.items()},
        problem_type=head.get("problem_type"), trust_remote_code=False,
    )  # fmt: skip
    # the base model's head may have other classes; the adapters' folder replaces it
    return {"config": config, "ignore_mismatched_sizes": True}


def _package(name: str) -> Any:
    package = name.replace("_", "-")
    release = SAFE_RELEASES.get(package)
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise FtclusterError(
            f"the model needs the package {package} in this Python environment: {error}",
            PACKAGES.format(f"{package}>={release}" if release else package),
        ) from error
