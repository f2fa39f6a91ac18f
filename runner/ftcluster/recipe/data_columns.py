"""Find the columns that a task reads from local data, and the use of each column."""

from pathlib import Path

from ftcluster.recipe.dataset_checks import options_for, used_splits
from ftcluster_common.data.column_uses import UNREAD, Columns
from ftcluster_common.data.data_files import (
    TEXT,
    TRAIN,
    VALIDATION,
    DataError,
    Files,
    Table,
    encoding_of,
    files_of,
    kind_of,
    read_on_hosts,
    texts_of,
)
from ftcluster_common.protocol.job import PREDICT, Purpose
from ftcluster_common.recipe import Recipe

DELIMITED = (".csv", ".tsv")
ENCODINGS = {"cp1252": "Windows-1252", "utf-16": "UTF-16"}


def find_columns(recipe: Recipe, purpose: Purpose = "train") -> Columns:
    """Return the columns of a single data set by their use.

    The result is empty if this machine cannot read the data.

    This machine reads local CSV, TSV, JSON and JSONL files. Only hosts read Parquet files and data
    from the Hub.
    """
    names = header(recipe, purpose)
    try:
        files = files_of(Path(recipe.source)) if names else {}
        options = options_for(files, recipe.options, purpose)
        return recipe.spec.column_uses(options, names, purpose != PREDICT) if names else {}
    except DataError:  # check_data reports the details
        return {}


def header(recipe: Recipe, purpose: Purpose = "train") -> list[str]:
    """Return the column names of a single data set; empty if this machine cannot read the data."""
    path, options = Path(recipe.source), recipe.options
    if not path.exists() or (TEXT in recipe.spec.file_kinds and texts_of(path)):
        return []
    try:
        files = files_of(path)
        splits = [name for name in used_splits(files, options, purpose) if name in files]
        readable = [f for name in splits[:1] for f in files[name] if not read_on_hosts(f)]
        for _, row in Table(tuple(readable), purpose != PREDICT).with_places():
            return [] if isinstance(row, DataError) else list(map(str, row))
    except DataError:
        pass
    return []


def file_notes(recipe: Recipe, purpose: Purpose = "train") -> tuple[str, ...]:
    """Return notes on exports from annotation tools, on encodings, and on skipped files."""
    return tuple(note for part in recipe.by_set() for note in _notes_of_set(part, purpose))


def _notes_of_set(recipe: Recipe, purpose: Purpose) -> tuple[str, ...]:
    if TEXT in recipe.spec.file_kinds and (texts := texts_of(Path(recipe.source))):
        left = [file.name for split in texts.keys() - {TRAIN, VALIDATION} for file in texts[split]]
        return (f"files skipped because of their names: {', '.join(left)}",) if left else ()
    try:
        files = files_of(Path(recipe.source)) if Path(recipe.source).exists() else {}
        splits = used_splits(files, recipe.options, purpose) if files else ()
        tables = [f for name in splits for f in files.get(name, ()) if kind_of(f) in DELIMITED]
        encodings = [(file.name, encoding_of(file)) for file in tables]
        exports = [
            note
            for name in splits
            if purpose != PREDICT and name in files and not any(map(read_on_hosts, files[name]))
            for note in Table(files[name]).export_notes(_name_of(files[name], name))
        ]
    except DataError:  # check_data reports the details
        return ()
    converted = (
        f"{name} is not encoded in UTF-8, so it is read as {ENCODINGS[encoding]}"
        for name, encoding in encodings
        if encoding in ENCODINGS
    )
    return (*exports, *converted)


def _name_of(files: Files, split: str) -> str:
    """Return the name of a split's file; if the split has several files, the split's name."""
    return files[0].name if len(files) == 1 else split


def columns_line(columns: Columns) -> str:
    """Return one line that lists the columns with their uses, and the columns that are not read.

    >>> columns_line({"text": ("title", "body"), "label": ("team",), UNREAD: ("id",)})
    'columns: title, body (text), team (label); not read: id'
    """
    read = [f"{', '.join(names)} ({use})" for use, names in columns.items() if use != UNREAD]
    unread = f"; {UNREAD}: {', '.join(columns[UNREAD])}" if UNREAD in columns else ""
    return f"columns: {', '.join(read)}{unread}"
