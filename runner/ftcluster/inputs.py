"""Data and model folders that a user hands over: checked and named before anything is launched."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from ftcluster.errors import InputError

SPLITS = ("train", "validation")
MAX_PROBLEMS = 10  # a list longer than this helps nobody
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
           "pytorch_model.bin.index.json")  # fmt: skip


def folder_name(folder: Path) -> str:
    """A name for a copy of a folder that changes with its files: mrpc-4f7d1c0b2a9e."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder)}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return f"{folder.resolve().name}-{digest.hexdigest()[:12]}"


def check_data_folder(folder: Path, text_columns: Sequence[str], label_column: str) -> None:
    """Make sure that a folder holds train.jsonl and validation.jsonl as the task needs them.

    Raises:
        InputError: every problem found, each with file and line.
    """
    if not folder.is_dir():
        raise InputError(f"data folder {folder} does not exist")
    problems: list[str] = []
    for split in SPLITS:
        file = folder / f"{split}.jsonl"
        if not file.is_file():
            there = sorted(path.name for path in folder.iterdir())
            found = ", ".join(there[:8]) or "nothing"
            problems.append(f"{file} does not exist; the folder has: {found}")
        else:
            problems += _check_jsonl(file, text_columns, label_column, MAX_PROBLEMS)
    _raise_together(
        problems,
        f"data folder {folder} cannot be used",
        "each line of train.jsonl and validation.jsonl is one JSON object with "
        f"{', '.join(text_columns)} (text) and {label_column} (0, 1, ...)",
    )


def _check_jsonl(
    file: Path, text_columns: Sequence[str], label_column: str, limit: int
) -> list[str]:
    problems: list[str] = []
    rows = 0
    try:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                rows += 1
                problem = _check_row(line, text_columns, label_column)
                if problem:
                    problems.append(f"{file}:{number}: {problem}")
                if len(problems) >= limit:
                    problems.append(f"{file}: not read further after {limit} problems")
                    break
    except UnicodeDecodeError as error:
        problems.append(f"{file}: not UTF-8: {error.reason} at byte {error.start}")
    except OSError as error:
        problems.append(f"{file}: cannot be read: {error.strerror}")
    if rows == 0 and not problems:
        problems.append(f"{file} is empty")
    return problems


def _check_row(line: str, text_columns: Sequence[str], label_column: str) -> str:
    """What is wrong with one line of JSONL, or an empty string."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        return f"broken JSON: {error.msg} at column {error.colno}"
    if not isinstance(row, dict):
        return f"a {type(row).__name__} where a JSON object is needed"
    missing = [name for name in (*text_columns, label_column) if name not in row]
    if missing:
        return f"no column {', '.join(missing)}; found {', '.join(map(str, row)) or 'none'}"
    for name in text_columns:
        if not isinstance(row[name], str):
            return f"{name} is {row[name]!r}, not a text"
    label = row[label_column]
    if isinstance(label, bool) or not isinstance(label, int) or label < 0:
        return f"{label_column} is {label!r}, not a class number (0, 1, ...)"
    return ""


def check_model_folder(folder: Path) -> None:
    """Make sure that a folder is a model as `from_pretrained` reads it, tokenizer included.

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
    if not any((folder / name).is_file() for name in WEIGHTS):
        problems.append(f"no weights (one of {', '.join(WEIGHTS)})")
    tokenizers = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json")
    if not any((folder / name).is_file() for name in tokenizers):
        problems.append(f"no tokenizer (one of {', '.join(tokenizers)})")
    _raise_together(
        problems,
        f"{folder} is not a Hugging Face model folder",
        "a folder that save_pretrained wrote for model and tokenizer has all of these",
    )


def _raise_together(problems: list[str], what: str, hint: str) -> None:
    if problems:
        raise InputError(f"{what}\n  " + "\n  ".join(problems), hint)
