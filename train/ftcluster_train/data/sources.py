"""Raw data: rows from a folder, from the Hub or generated, and texts as streams."""

import io
import itertools
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftcluster_common.recipe import GENERATED
from ftcluster_train.data.download import WITH_TOKEN
from ftcluster_train.data.packing import Piece, pieces
from ftcluster_train.data.synthetic_pairs import generate
from ftcluster_train.errors import TrainError, first_line

BATCH_ROWS = 500  # that are tokenised together

Row = Mapping[str, Any]
Rows = Iterable[Row]  # can be iterated several times


@dataclass(frozen=True)
class JsonLines:
    """The rows of a file with one JSON object a line."""

    path: Path

    def __iter__(self) -> Iterator[Row]:
        with self.path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _object(line, f"{self.path}:{number}")


def _object(line: str, where: str) -> Row:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise TrainError(f"{where}: broken JSON: {error}") from error
    if not isinstance(row, dict):
        raise TrainError(f"{where}: a {type(row).__name__} where a JSON object is needed")
    return row


def load_rows(data: str, config: str | None, splits: Sequence[str]) -> dict[str, Rows]:
    """The rows of each split.

    Args:
        data: a folder with SPLIT.jsonl, `generated:train=N,validation=N,seed=N`, or a name for
            `datasets.load_dataset`.

    Raises:
        TrainError: it cannot be loaded, or lacks a split.
    """
    if data.startswith(GENERATED):
        found = _generated(data.removeprefix(GENERATED))
    else:
        found = _tables(data, config)
    missing = [split for split in splits if split not in found]
    if missing:
        names = ", ".join(found) or "none"
        raise TrainError(f"data '{data}' has no split {', '.join(missing)}; found {names}")
    return {split: found[split] for split in splits}


def _tables(data: str, config: str | None) -> dict[str, Rows]:
    """The rows of a folder's SPLIT.jsonl, or of a data set on the Hub."""
    if Path(data).is_dir():
        return {file.stem: JsonLines(file) for file in sorted(Path(data).glob("*.jsonl"))}
    return _from_hub(data, config)


def _generated(settings: str) -> dict[str, Rows]:
    """Generated sentence pairs; settings are `train=N,validation=N,seed=N`."""
    try:
        numbers = {key: int(value) for key, value in (s.split("=") for s in settings.split(","))}
        train, validation, seed = (numbers.pop(k) for k in ("train", "validation", "seed"))
        if numbers or train < 1 or validation < 1:
            raise ValueError
    except (ValueError, KeyError):
        raise TrainError(
            f"data '{GENERATED}{settings}' cannot be parsed",
            f"write it as {GENERATED}train=4000,validation=400,seed=7",
        ) from None
    counts = (("train", train), ("validation", validation))
    return {split: generate(seed, count, split) for split, count in counts}


def _from_hub(name: str, config: str | None) -> dict[str, Any]:
    import datasets  # takes seconds

    datasets.disable_progress_bars()
    try:
        return dict(datasets.load_dataset(name, config))
    except Exception as error:  # load_dataset raises whatever its many sources raise
        raise TrainError(
            f"data '{name}' cannot be loaded: {first_line(error)}",
            f"use a folder with data for the task: --data DIR; {WITH_TOKEN}",
        ) from error


def dataset_version(name: str, config: str | None) -> dict[str, list[str]]:
    """A value for each split of a data set on the Hub that changes when its data do.

    Raises:
        TrainError: it cannot be loaded.
    """
    # the names of the cache's files contain configuration, version and commit
    return {
        split: [file["filename"] for file in rows.cache_files] or [uuid.uuid4().hex]
        for split, rows in _from_hub(name, config).items()
    }


def class_names(rows: Rows, label: str) -> list[str]:
    """The names of a column's classes, if rows come from the Hub and have them."""
    kind = getattr(rows, "features", {}).get(label)
    return list(getattr(kind, "names", None) or ())


def column_batches(
    rows: Rows, columns: Sequence[str], where: str
) -> Iterator[dict[str, list[Any]]]:
    """Batches of rows, as a list for each column.

    Raises:
        TrainError: a row lacks a column.
    """
    numbered = enumerate(rows, start=1)
    while batch := list(itertools.islice(numbered, BATCH_ROWS)):
        for number, row in batch:
            missing = [name for name in columns if name not in row]
            if missing:
                raise TrainError(
                    f"row {number} of {where} has no column {', '.join(missing)}; "
                    f"found {', '.join(map(str, row))}",
                    "name the columns of your data, such as text_columns=[a,b] label_column=c",
                )
        yield {name: [row[name] for _, row in batch] for name in columns}


@dataclass(frozen=True)
class TextFiles:
    """Text files as a stream of pieces; each file is one text."""

    paths: tuple[Path, ...]

    def __iter__(self) -> Iterator[Piece]:
        for path in self.paths:
            try:
                with path.open(encoding="utf-8") as lines:
                    yield from pieces(lines)
            except UnicodeDecodeError as error:
                raise TrainError(f"{path}: not UTF-8: {error.reason}") from error


@dataclass(frozen=True)
class TextRows:
    """A column of rows as a stream of pieces; each row is one text."""

    rows: Rows
    column: str
    where: str

    def __iter__(self) -> Iterator[Piece]:
        for number, row in enumerate(self.rows, start=1):
            text = row.get(self.column)
            if not isinstance(text, str):
                raise TrainError(
                    f"row {number} of {self.where} has no text in column {self.column}; "
                    f"found {', '.join(map(str, row))}",
                    "name the column: text_column=NAME",
                )
            yield from pieces(io.StringIO(text))


Texts = TextFiles | TextRows


def load_texts(data: str, config: str | None, column: str) -> dict[str, Texts]:
    """The texts of the splits train and, if there is one, validation.

    Args:
        data: a folder with *.txt (validation.txt is that split), or as in `load_rows`.
        column: the column with the text, if the data are rows.

    Raises:
        TrainError: it cannot be loaded.
    """
    folder = Path(data)
    texts = sorted(folder.glob("*.txt")) if folder.is_dir() else []
    if texts and not (folder / "train.jsonl").is_file():
        validation = tuple(path for path in texts if path.stem == "validation")
        splits = {"train": tuple(path for path in texts if path not in validation)}
        splits |= {"validation": validation} if validation else {}
        return {split: TextFiles(paths) for split, paths in splits.items()}
    found = _tables(data, config)
    if "train" not in found:
        raise TrainError(
            f"data '{data}' has no split train; found {', '.join(found) or 'none'}",
            "use a folder with texts in *.txt: --data DIR",
        )
    return {
        split: TextRows(found[split], column, f"{split} of {data}")
        for split in ("train", "validation")
        if split in found
    }
