"""Data sets in the form that users have: a folder with one JSON lines file per split."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def write_rows(folder: Path, row: Callable[[int], Row], **splits: int) -> Path:
    """Write one file per split with the given number of rows."""
    folder.mkdir()
    for split, count in splits.items():
        text = "".join(json.dumps(row(number)) + "\n" for number in range(count))
        (folder / f"{split}.jsonl").write_text(text)
    return folder


def pair(number: int) -> Row:
    """Return two sentences and a label that a model learns in a few steps."""
    label = number % 2
    sentences = {"sentence1": f"number {number}", "sentence2": ("even", "odd one")[label]}
    return {**sentences, "label": label}
