"""Export a trained model for other runtimes on this machine, and verify the exported model."""

import re
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from ftcluster.errors import FtclusterError, InputError, UsageError, raise_together
from ftcluster.export.exporter import environment, run_program
from ftcluster.operations.connection import Connection
from ftcluster.operations.result import Result
from ftcluster.operations.runs.runs import fetch
from ftcluster.paths import keep_private, make_folder
from ftcluster.progress.view import View
from ftcluster.recipe.model_code import code_problems
from ftcluster.recipe.trained_fields import TrainedFields, run_hint, trained_fields
from ftcluster_common.data.columns import find_texts
from ftcluster_common.data.data_files import (
    VALIDATION,
    DataError,
    Row,
    Table,
    files_of,
    read_on_hosts,
)
from ftcluster_common.given_files import read_json
from ftcluster_common.models.trained_model import FILE
from ftcluster_common.tasks.registry import TASKS

FORMATS = ("openvino", "onnx")
DECODER = "CausalLM"
MOST_ROWS = 1000
TEXTS = (
    "The service was quick and friendly.",
    "It broke after two days, and nobody answers.",
    "How many people live in the capital?",
    "About two million people live in the city, which lies on a river and has a large harbour.",
)
MOST_TOKENS = 512  # maximum tokens of a text if the training sets no limit
# the largest allowed difference from torch's outputs, as a fraction of the largest output; the key
# is True for --int8. Differences measured with MiniLM and a small decoder are 1e-6 without --int8,
# and 0.02 to 0.13 with --int8
ALLOWED = {False: 1e-3, True: 0.5}
GGUF = (
    "no maintained package converts models to GGUF: the package gguf only reads and writes the "
    "format, and the converter is a script in llama.cpp's repository"
)
# files that are not copied: the exported model replaces the weights, and the list of training rows
# is private
NOT_COPIED = re.compile(r".*\.(safetensors|bin|index\.json)|ftcluster\.rows")
MODULE = re.compile(r"\d+_\w+")  # the folder of a sentence-transformers module


@dataclass(frozen=True)
class ExportModelRequest:
    """A model to export, and the options of the export.

    Attributes:
        format: a format of FORMATS.
        model: path of a model's folder, or id of a run; the run's model is copied to this machine.
        output: path of the new folder; "" for the model's name followed by the format.
        int8: True if weights are quantized to 8 bits.
        data: rows for comparing the exported model with torch's: a file with the model's columns,
            or a folder with a validation set; "" for a few built-in texts.
    """

    format: str
    model: str
    output: str = ""
    int8: bool = False
    data: str = ""
    connection: Connection = field(default_factory=Connection)

    def __post_init__(self) -> None:
        """Check that the format is supported.

        Raises:
            UsageError: the format is not supported.
        """
        if self.format == "gguf":
            raise UsageError(
                GGUF,
                "copy the model with ftcluster fetch RUN DIR, and run in a checkout of llama.cpp: "
                "python convert_hf_to_gguf.py DIR --outfile FILE.gguf",
            )
        if self.format not in FORMATS:
            raise UsageError(f"the format must be {' or '.join(FORMATS)}, got {self.format}")


# rows for the comparison, and the name of the metric to compute. Each row has one or two texts and
# a label (a number or None). The metric is accuracy, pearson or loss; "" for rows without labels
Compared = tuple[list[dict[str, Any]], str]


def export_model(request: ExportModelRequest, view: View) -> Result:
    """Export a model, and compare its outputs with the outputs of the model in torch.

    Raises:
        UsageError, InputError: the model or the data cannot be exported.
        FtclusterError: the exporter's packages are not available, the exporter failed, or the
            exported model's outputs differ from torch's.
    """
    name = Path(request.model).absolute().name
    target = Path(request.output or f"{name}-{request.format}").absolute()
    if target.exists():
        raise UsageError(f"{target} exists already", "choose another folder: --output DIR")
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(request.model).absolute()
        shown = str(source)
        if not source.is_dir():
            source, shown = Path(scratch) / "model", f"the model of {request.model}"
            fetch(request.connection, request.model, str(source), view)
        trained = trained_fields(source)
        check_source(source, trained, request.format, shown)
        rows, measure = rows_of(request.data, trained, source, shown)
        python = environment(request.format, view)
        partial = target.with_name(f".{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        options = trained.options
        job = {
            "format": request.format, "source": str(source), "target": str(partial),
            "kind": _exported_as(trained.task), "int8": request.int8, "rows": rows,
            "measure": measure,
            "max_length": options.get("max_length") or options.get("block_size") or MOST_TOKENS,
        }  # fmt: skip
        view.say(f"exporting {request.model}, and comparing it on {len(rows)} rows ...")
        try:
            make_folder(partial)
            comparison = run_program(python, job, Path(scratch))
            allowed = ALLOWED[request.int8]
            if not comparison["difference"] <= allowed * comparison["scale"]:
                raise FtclusterError(
                    f"the exported model's outputs differ from torch's: {_difference(comparison)}, "
                    f"but at most {allowed:.1%} is allowed",
                    "the export was deleted; use the original model",
                )
            copy_rest(source, partial)
            keep_private(partial)
            partial.rename(target)
        except OSError as error:
            raise FtclusterError(f"{error.filename or target}: {error.strerror}") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    document = {"state": "done", "format": request.format, "int8": request.int8, **comparison}
    return Result(
        {**document, "model": str(target)}, (*_compared(comparison, measure), f"model: {target}")
    )


def _difference(comparison: Mapping[str, Any]) -> str:
    difference, scale = comparison["difference"], comparison["scale"]
    return f"the largest difference is {difference:.2g}, for outputs up to {scale:.2g}"


def _compared(comparison: Mapping[str, Any], measure: str) -> Iterator[str]:
    yield f"compared with torch on {comparison['rows']} rows: {_difference(comparison)}"
    if "agreement" in comparison:
        yield f"identical predictions: {comparison['agreement']:.2%}"
    if measure:
        before, after = (comparison[f"{measure}_{when}"] for when in ("before", "after"))
        yield f"{measure}: {before:.4f} before the export, {after:.4f} after it"


def check_source(folder: Path, trained: TrainedFields, kind: str, shown: str) -> None:
    """Check that a folder contains a model that can be exported, and no files that may be code.

    Args:
        shown: name of the model in error messages, because the folder may be temporary.

    Raises:
        InputError, UsageError: the model cannot be exported, or a file may run as code.
    """
    if not trained.task:
        hint = run_hint(folder)
        what = f"{shown} contains no {trained.missing}, so the model's task is unknown"
        raise InputError(what, hint)
    if (folder / "adapter_config.json").is_file():
        raise InputError(
            f"{shown} contains only adapters, not a complete model",
            "train with merge_adapters=true, or merge the adapters with peft",
        )
    exported_as = _exported_as(trained.task)
    if not exported_as:
        raise UsageError(f"models for {trained.task} cannot be exported")
    if kind == "onnx" and exported_as == DECODER:
        raise UsageError(
            "decoders can only be exported to OpenVINO, because an ONNX model would lack the "
            "key-value cache",
            "use this command: ftcluster export-model openvino",
        )
    raise_together(
        code_problems(folder),
        f"{shown} is not exported, because its files may run or download code",
        "export a folder that ftcluster's training wrote",
    )


def copy_rest(source: Path, target: Path) -> None:
    """Copy the model's files that the target lacks, except the weights.

    These files are the tokenizer, the model card, ftcluster.json and the folders of
    sentence-transformers modules.
    """
    for path in source.iterdir():
        if (
            path.is_file()
            and not NOT_COPIED.fullmatch(path.name)
            and not (target / path.name).exists()
        ):
            shutil.copyfile(path, target / path.name)
    for path in source.iterdir():  # paths in modules.json may lead out of the folder
        if MODULE.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            shutil.copytree(path, target / path.name, symlinks=True, dirs_exist_ok=True)


def rows_of(data: str, trained: TrainedFields, folder: Path, shown: str) -> Compared:
    """Return the rows for the comparison: rows of `data`, or a few built-in texts.

    Args:
        shown: name of the model in error messages, because the folder may be temporary.

    Raises:
        UsageError: rows of this task cannot be read here.
        InputError: the file lacks the columns, or contains no rows, or classes that the model does
            not know.
    """
    task, options = trained.task, trained.options
    spec = TASKS.get(task)
    if not data:
        pairs = spec is not None and spec.reads_pairs
        texts = [[text, TEXTS[3]] if pairs else [text] for text in TEXTS]
        return [{"texts": row, "label": None} for row in texts], ""
    if spec is None or not spec.compared_rows:
        raise UsageError(
            f"--data: rows for {task} cannot be read here",
            "omit --data to compare the outputs for built-in texts",
        )
    try:
        splits = files_of(Path(data))
        names = sorted(
            splits, key=lambda name: (not name.startswith(VALIDATION), "test" not in name)
        )
        files = splits[names[0]] if names else ()
        if any(map(read_on_hosts, files)):
            raise DataError("only hosts can read Parquet and Arrow; pass CSV, TSV or JSON lines")
        rows = list(islice(Table(files), MOST_ROWS))
        if not rows:
            raise DataError("there are no rows")
        if spec.compared_rows == "texts":
            cells = _cells(rows, options["text_column"])
            return [{"texts": [cell], "label": None} for cell in cells], "loss"
        columns = options.get("text_columns") or find_texts(list(rows[0]))
        texts = [list(row) for row in zip(*(_cells(rows, name) for name in columns), strict=True)]
        words = [_word(row.get(str(options.get("label_column")))) for row in rows]
        labels, measure = _labels(words, read_json(folder / "config.json"))
    # these errors include an invalid config.json of the model
    except (DataError, KeyError, ValueError, TypeError, AttributeError) as error:
        where = f"{FILE} of {shown} names the columns that the model reads"
        raise InputError(f"{data}: {error}", where) from error

    labelled = zip(texts, labels, strict=True)
    return [{"texts": row, "label": label} for row, label in labelled], measure


def _exported_as(task: str) -> str:
    """Return the suffix of the exporter class's name; "" if the task's models have no exporter."""
    return TASKS[task].exported_as if task in TASKS else ""


def _cells(rows: Collection[Row], name: str) -> list[str]:
    if missing := [n for n, row in enumerate(rows, start=1) if row.get(name) is None]:
        raise DataError(f"row {missing[0]} has no value in column {name}")
    return [str(row[name]) for row in rows]


def _word(label: Any) -> str:
    """Return the class name that training would use for a label; "" for a missing label."""
    if isinstance(label, bool):
        return str(label).lower()
    whole = isinstance(label, float) and label.is_integer()
    return "" if label is None else str(int(label) if whole else label).strip()


def _labels(words: list[str], config: Mapping[str, Any]) -> tuple[list[float | None], str]:
    """Return the labels as numbers, and the metric for the comparison.

    A label that names a class becomes the index of the class. Other labels are already numbers.

    Raises:
        DataError: a label is not a class of the model.
        ValueError: a label is not a number.
    """
    several = config.get("problem_type") == "multi_label_classification"
    if several or not any(words):
        return [None] * len(words), ""
    numbers = {str(name): int(n) for n, name in config.get("id2label", {}).items()}
    if len(numbers) == 1:
        return [float(word) if word else None for word in words], "pearson"
    labels, indices = {word for word in words if word}, numbers
    as_numbers = {str(n): n for n in numbers.values()}
    if not labels <= indices.keys() and labels <= as_numbers.keys():
        indices = indices if any(name.isdigit() for name in indices) else as_numbers
    if unknown := sorted(labels - indices.keys()):
        raise DataError(
            f"not classes of the model: {', '.join(unknown[:8])}; its classes are "
            f"{', '.join(numbers)}"
        )
    return [indices.get(word) for word in words], "accuracy"
