"""Raw data: rows of a folder, a Hub data set or generated ones, and texts as streams."""

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftcluster_train.data.download import WITH_TOKEN
from ftcluster_train.data.packing import Piece, pieces
from ftcluster_train.data.synthetic_pairs import generate
from ftcluster_train.errors import TrainError, first_line

GENERATED = "generated:"
AT_ONCE = 500  # rows that are tokenised together

Row = Mapping[str, Any]
Rows = Iterable[Row]  # can be gone through several times


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
        config: the configuration of a named data set.
        splits: those that are needed; `train` is one of them.

    Raises:
        TrainError: it cannot be loaded, or lacks a split; says what was found.
    """
    if data.startswith(GENERATED):
        found = _generated(data.removeprefix(GENERATED))
    elif Path(data).is_dir():
        files = sorted(Path(data).glob("*.jsonl"))
        found = {file.stem: JsonLines(file) for file in files}
    else:
        found = _from_hub(data, config)
    missing = [split for split in splits if split not in found]
    if missing:
        there = ", ".join(found) or "none"
        raise TrainError(f"data '{data}' has no split {', '.join(missing)}; found {there}")
    return {split: found[split] for split in splits}


def _generated(settings: str) -> dict[str, Rows]:
    """Sentence pairs made from a seed; settings are `train=N,validation=N,seed=N`."""
    try:
        numbers = {key: int(value) for key, value in (s.split("=") for s in settings.split(","))}
        train, validation, seed = (numbers.pop(k) for k in ("train", "validation", "seed"))
        if numbers or train < 1 or validation < 1:
            raise ValueError
    except (ValueError, KeyError):
        raise TrainError(
            f"data '{GENERATED}{settings}' is not understood",
            f"write it like {GENERATED}train=4000,validation=400,seed=7",
        ) from None
    counts = (("train", train), ("validation", validation))
    return {split: generate(seed, count, split) for split, count in counts}


def _from_hub(name: str, config: str | None) -> dict[str, Any]:
    import datasets  # takes seconds, so only where it is needed

    datasets.disable_progress_bars()
    try:
        return dict(datasets.load_dataset(name, config))
    except Exception as error:  # load_dataset raises whatever its many sources raise
        raise TrainError(
            f"data '{name}' cannot be loaded: {first_line(error)}",
            f"give a folder in the task's form: --data DIR; {WITH_TOKEN}",
        ) from error


def version_of_named(name: str, config: str | None) -> dict[str, str]:
    """What changes by split when a name on the Hub gets other data; they are fetched for it.

    Raises:
        TrainError: they cannot be loaded.
    """
    # of the builder's name, configuration, version and commit
    return {split: rows._fingerprint for split, rows in _from_hub(name, config).items()}


def names_of_classes(rows: Rows, label: str) -> list[str]:
    """What a Hub data set calls the classes of a column; none where it does not say."""
    kind = getattr(rows, "features", {}).get(label)
    return list(getattr(kind, "names", None) or ())


def batches(rows: Rows, columns: Sequence[str], where: str) -> Iterator[dict[str, list[Any]]]:
    """The rows in batches, as a list for each of the columns.

    Raises:
        TrainError: a row lacks a column; says what it has.
    """
    held: list[Row] = []
    for number, row in enumerate(rows, start=1):
        absent = [name for name in columns if name not in row]
        if absent:
            raise TrainError(
                f"row {number} of {where} has no column {', '.join(absent)}; "
                f"found {', '.join(map(str, row))}",
                "name the columns of your data, such as text_columns=[a,b] label_column=c",
            )
        held.append(row)
        if len(held) == AT_ONCE:
            yield {name: [row[name] for row in held] for name in columns}
            held = []
    if held:
        yield {name: [row[name] for row in held] for name in columns}


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
    """The texts to train on, and those of validation where there are such.

    Args:
        data: a folder with *.txt, validation.txt among them or not; or as in `load_rows`.
        config: the configuration of a named data set.
        column: the column with the text, where the data are rows.

    Raises:
        TrainError: it cannot be loaded.
    """
    folder = Path(data)
    texts = sorted(folder.glob("*.txt")) if folder.is_dir() else []
    if texts and not (folder / "train.jsonl").is_file():
        held = tuple(path for path in texts if path.stem == "validation")
        train = TextFiles(tuple(path for path in texts if path not in held))
        return {"train": train, **({"validation": TextFiles(held)} if held else {})}
    if folder.is_dir():
        found: dict[str, Rows] = {file.stem: JsonLines(file) for file in folder.glob("*.jsonl")}
    else:
        found = _from_hub(data, config)
    if "train" not in found:
        raise TrainError(
            f"data '{data}' has no split train; found {', '.join(found) or 'none'}",
            "give a folder with texts in *.txt: --data DIR",
        )
    return {
        split: TextRows(found[split], column, f"{split} of {data}")
        for split in ("train", "validation")
        if split in found
    }
