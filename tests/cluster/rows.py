"""Data sets as a user has them: a folder with a file of JSON lines for each split."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def write_rows(folder: Path, row: Callable[[int], Row], **splits: int) -> Path:
    """A file a split, with so many rows."""
    folder.mkdir()
    for split, count in splits.items():
        text = "".join(json.dumps(row(number)) + "\n" for number in range(count))
        (folder / f"{split}.jsonl").write_text(text)
    return folder


def pair(number: int) -> Row:
    """Two sentences that a model learns to classify in a few steps."""
    label = number % 2
    sentences = {"sentence1": f"number {number}", "sentence2": ("even", "odd one")[label]}
    return {**sentences, "label": label}
