"""Exports a trained model for other runtimes, on this machine, in an environment of its own.

The exporter's packages cap the version of transformers below that of the stacks, so the hosts'
environment is left alone. `export/exporters/program.py` is what runs there.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.ftcluster.cluster.plugins.plugin_utils.download import Sources, Target
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.wheelhouse import (
    Wanted,
    Wheelhouse,
    WheelhouseError,
    cache_dir,
    get_wheels,
)

from ftcluster.errors import FtclusterError, InputError, UsageError
from ftcluster.operations.connection import Connection
from ftcluster.operations.result import Result
from ftcluster.operations.runs import fetch
from ftcluster.progress.view import View
from ftcluster.stacks.catalog import load_stacks
from ftcluster_common.columns import find_texts
from ftcluster_common.data_files import DataError, Table, files_of
from ftcluster_common.trained_model import read_trained

FORMATS = ("openvino", "onnx", "gguf")
EXPORTERS = Path(__file__).parents[1] / "export/exporters"
PROGRAM, LOCK, MORE = "program.py", "exporter.txt", "exporter-cuda.txt"
ENCODERS = (
    "text-classification", "text-ranking", "question-answering", "token-classification",
    "sentence-similarity",
)  # fmt: skip
DECODERS = ("causal-lm", "instruction-tuning", "preference-tuning")
MOST_ROWS = 500
PAIRS = ("text-ranking", "question-answering")
TEXTS = (
    "The service was quick and friendly.",
    "It broke after two days, and nobody answers.",
    "How many people live in the capital?",
    "About two million people live in the city, which lies on a river and has a large harbour.",
)
ALLOWED = 1e-3  # the relative difference of outputs in fp32; measured: below 1e-5
# the exporter reads folders alone, and tells nobody
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"}
GGUF = (
    "no package of the index converts to GGUF: gguf has the format alone, and the converter is a "
    "script of llama.cpp's own repository"
)


@dataclass(frozen=True)
class ExportModelRequest:
    """What is exported, and how.

    Attributes:
        format: one of FORMATS.
        model: a run, whose model is copied here, or a model's folder.
        output: a new folder; "": the model's name with the format behind it.
        int8: whether weights are in 8 bits.
        data: rows that both are compared on: a file with the model's columns; "": a few texts.
    """

    format: str
    model: str
    output: str = ""
    int8: bool = False
    data: str = ""
    connection: Connection = field(default_factory=Connection)

    def __post_init__(self) -> None:
        """Refuse what cannot be had.

        Raises:
            UsageError: that is so.
        """
        if self.format not in FORMATS:
            raise UsageError(f"{self.format} is none of {', '.join(FORMATS)}")
        if self.format == "gguf":
            raise UsageError(GGUF, "its convert_hf_to_gguf.py takes the folder of ftcluster fetch")


def export_model(request: ExportModelRequest, view: View) -> Result:
    """Export a model, and compare what it computes with torch.

    Raises:
        UsageError, InputError: the model or the data are not of a kind that can be exported.
        FtclusterError: the exporter's packages cannot be had, it failed, or the exported model
            computes something else.
    """
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(request.model)
        if not source.is_dir():
            source = Path(scratch) / "model"
            fetch(request.connection, request.model, str(source), view)
        trained = read_trained(source)
        check_source(source, trained, request)
        rows = rows_of(request.data, trained, source)
        target = Path(request.output or f"{Path(request.model).name}-{request.format}").absolute()
        if target.exists():
            raise UsageError(f"{target} exists", "name another folder: --output DIR")
        python = environment(view)
        partial = target.with_name(f".{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        asked = {
            "format": request.format, "source": str(source.absolute()), "target": str(partial),
            "task": trained["task"], "int8": request.int8, "rows": rows,
        }  # fmt: skip
        job = Path(scratch) / "request.json"
        job.write_text(json.dumps(asked), encoding="utf-8")
        view.say(f"exporting {request.model} ...")
        try:
            found = run_program(python, job)
            if not request.int8 and not found["difference"] <= ALLOWED:
                raise FtclusterError(
                    f"the exported model computes something else: its outputs differ by "
                    f"{found['difference']:.2%}",
                    "nothing was kept; use the model as it is",
                )
            for name in ("ftcluster.json", "README.md"):
                if (source / name).is_file():
                    shutil.copyfile(source / name, partial / name)
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    document = {"state": "done", "format": request.format, "model": str(target), **found}
    return Result(document, (*_said(found), f"model: {target}"))


def _said(found: dict[str, Any]) -> list[str]:
    lines = [
        f"compared with torch on {found['rows']} rows: outputs differ by "
        f"{found['difference']:.2g}, {found['agreement']:.1%} of the predictions are the same"
    ]
    if "accuracy_before" in found:
        before, after = found["accuracy_before"], found["accuracy_after"]
        lines.append(f"accuracy: {before:.4f} before, {after:.4f} after")
    return lines


def check_source(folder: Path, trained: dict[str, Any], request: ExportModelRequest) -> None:
    """Make sure that a folder has a model that can be exported.

    Raises:
        InputError, UsageError: it has not.
    """
    if not trained:
        raise InputError(f"{folder} has no ftcluster.json, which says what the model is for")
    if (folder / "adapter_config.json").is_file():
        raise InputError(
            f"{folder} has adapters only", "train with merge_adapters=true, or merge them with peft"
        )
    if trained["task"] not in (*DECODERS, *ENCODERS):
        raise UsageError(f"a model for {trained['task']} is not exported")
    if request.format == "onnx" and trained["task"] in DECODERS:
        raise UsageError(
            "a decoder is exported to OpenVINO only: in ONNX its cache would be missing",
            "ftcluster export-model openvino",
        )


def rows_of(data: str, trained: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """What is compared: rows of a file by the model's columns, or a few texts.

    Raises:
        InputError: the file has no such columns, or no rows.
    """
    if not data:
        pair = trained["task"] in PAIRS
        texts = [[one, TEXTS[3]] if pair else [one] for one in TEXTS]
        return [{"texts": one, "label": None} for one in texts]
    options, found = trained["options"], []
    try:
        files = files_of(Path(data))
        table = Table(next(iter(files.values())) if files else ())
        for row in table:
            columns = options.get("text_columns") or find_texts(list(row))
            texts = [str(row[name]) for name in columns]
            label = row.get(str(options.get("label_column")))
            whole = isinstance(label, str | int)
            found.append({"texts": texts, "label": str(label) if whole else None})
            if len(found) >= MOST_ROWS:
                break
    except (DataError, KeyError) as error:
        where = f"the model's columns are in {folder / 'ftcluster.json'}"
        raise InputError(f"{data}: {error}", where) from error
    if not found or not all(one["texts"] for one in found):
        raise InputError(f"{data} has no rows with the model's texts")
    return found


def environment(view: View) -> Path:
    """The Python with the exporter's packages, made once for each list of them.

    Raises:
        FtclusterError: a package cannot be had or does not have its hash, or the disk is full.
    """
    wanted = Wanted(
        "exporter", (EXPORTERS / LOCK).read_text(encoding="utf-8"),
        (EXPORTERS / MORE).read_text(encoding="utf-8"),
    )  # fmt: skip
    libc = platform.libc_ver()[1] or "2.28"
    target = Target(f"3.{sys.version_info.minor}", libc, platform.machine())
    folder = cache_dir().with_name("exporters") / f"{wanted.digest}-{target.tag}"
    python = folder / "bin/python"
    if (folder / "complete").is_file():
        return python
    view.say(f"making an environment for the exporter in {folder}, about 2 GB; only once ...")
    indexes = {name: url for stack in load_stacks().values() for name, url in stack.indexes.items()}
    try:
        house: Wheelhouse = get_wheels(wanted, target, Sources(indexes=indexes), cache_dir())
    except WheelhouseError as error:
        raise FtclusterError(
            f"the exporter's packages cannot be had: {error}", "it needs a package index"
        ) from error
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", "--no-index", "--no-deps",
         "--disable-pip-version-check", *map(str, house.files)],
    ):  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
            raise FtclusterError(f"no environment in {folder}: " + "\n  ".join(said))
    (folder / "complete").touch()
    return python


def run_program(python: Path, request: Path) -> dict[str, Any]:
    """What the exporter says of the exported model.

    Raises:
        FtclusterError: it failed.
    """
    command = [str(python), "-I", str(EXPORTERS / PROGRAM), str(request)]
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", check=False,
        env={"PATH": os.environ.get("PATH", ""), "HOME": os.environ.get("HOME", ""), **OFFLINE},
    )  # fmt: skip
    try:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        float(found["difference"]), int(found["rows"])
    except (ValueError, LookupError, TypeError) as error:
        said = done.stderr.strip().splitlines()[-4:]
        raise FtclusterError(
            "the exporter failed: " + "\n  ".join(said), "the model itself is as it was"
        ) from error
    return found
