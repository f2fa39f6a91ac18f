"""Writes exports as the annotation tools write them, and reads them as a training would."""

import csv
import json
from pathlib import Path
from typing import Any

from ftcluster_common.data.data_files import DataError, Row, Table

Rows = list[dict[str, Any]]


def write(path: Path, rows: Any) -> Path:
    """Write rows as JSON lines, as a JSON document, or as CSV, by the file's name."""
    if path.suffix == ".csv":
        columns = [*dict.fromkeys(name for row in rows for name in row)]
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(rows)
        return path
    lines = path.suffix == ".jsonl"
    text = "".join(json.dumps(row) + "\n" for row in rows) if lines else json.dumps(rows)
    path.write_text(text, encoding="utf-8")
    return path


def read(*paths: Path, labelled: bool = True) -> Rows:
    """Return the rows that a training gets."""
    return [dict(row) for row in Table(paths, labelled)]


def problems(path: Path) -> list[str]:
    """Return the messages about damaged rows, with file names instead of paths."""
    rows: list[tuple[str, Row | DataError]] = [*Table((path,)).with_places()]
    found = [str(row) for _, row in rows if isinstance(row, DataError)]
    return [message.replace(f"{path.parent}/", "") for message in found]


def notes(*paths: Path) -> list[str]:
    """Return the notes about exports."""
    return Table(paths).export_notes(paths[0].name if len(paths) == 1 else "train")
