"""Read raw data: rows or texts from files or the Hub, and generated rows."""

import io
import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ftcluster_common.data.compressed import open_text
from ftcluster_common.data.data_files import (
    PARQUET,
    TABLES,
    TEST,
    TRAIN,
    VALIDATION,
    DataError,
    Files,
    Row,
    Table,
    files_of,
    found_columns,
    kind_of,
    read_on_hosts,
    texts_of,
)
from ftcluster_common.data.importers.exports import Source, converted, export_notes
from ftcluster_common.data.row_checks import CheckRow
from ftcluster_common.given_files import parse_json
from ftcluster_common.recipe import GENERATED, split_revision
from ftcluster_common.tasks.registry import spec_of
from ftcluster_common.tasks.spec import Options
from ftcluster_train.engine.data.download import WITH_TOKEN
from ftcluster_train.engine.data.pieces import Piece, pieces
from ftcluster_train.engine.data.synthetic_pairs import generate
from ftcluster_train.errors import TrainError, first_line

MOST_PROBLEMS = 10
BATCH_ROWS = 500  # number of rows per batch for the tokenizer

Rows = Iterable[Row]  # can be iterated several times
T = TypeVar("T")


@dataclass(frozen=True)
class ArrowRows:
    """The rows of Parquet or Arrow files.

    Attributes:
        labelled: False to include rows without an answer from exports of annotation tools.
    """

    paths: Files
    labelled: bool = True

    def __iter__(self) -> Iterator[Row]:
        return (row for _, row in self.with_places())

    def with_places(self) -> Iterator[tuple[str, Row]]:
        """Yield each row with its place, such as `train.parquet: row 7`."""
        yield from converted(self._sources(), self.labelled)

    def export_notes(self, name: str) -> list[str]:
        """Return notes on exports of annotation tools among the files.

        Args:
            name: name of the set, for the notes.
        """
        return export_notes(self._sources(), name)

    def _sources(self) -> list[Source]:
        return [partial(_arrow_rows, path) for path in self.paths]

    def class_names(self, column: str) -> list[str]:
        """Return the class names of a column, or [] if the files do not have them.

        `datasets` writes class names into the files that it creates.
        """
        from pyarrow import ArrowException  # comes with datasets

        try:
            with _opened(self.paths[0]) as (schema, _):
                metadata = schema.metadata or {}
            features = parse_json(metadata[b"huggingface"].decode())["info"]["features"]
            kind = features[column]
            names = kind.get("feature", kind)["names"]  # lists of classes have them in "feature"
        except (ArrowException, OSError, ValueError, LookupError, TypeError, AttributeError):
            return []
        return [*map(str, names)] if isinstance(names, list) else []


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Iterable[Any]]]:
    """Open a Parquet or Arrow file, and return its schema and its batches."""
    import pyarrow
    from pyarrow import ipc, parquet

    if kind_of(path) == PARQUET:
        with parquet.ParquetFile(path) as file:
            yield file.schema_arrow, file.iter_batches(BATCH_ROWS)
        return
    with pyarrow.memory_map(str(path)) as memory:
        try:  # save_to_disk writes streams; other programs write files with a footer
            stream = ipc.open_stream(memory)
        except pyarrow.ArrowInvalid:
            file = ipc.open_file(memory)
            stream = (file.get_batch(number) for number in range(file.num_record_batches))
            yield file.schema, stream
        else:
            yield stream.schema, stream


def _arrow_rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Yield the rows of a Parquet or Arrow file with their places.

    Raises:
        DataError: the file cannot be read.
    """
    from pyarrow import ArrowException

    try:
        with _opened(path) as (_, batches):
            rows = itertools.chain.from_iterable(map(_batch_rows, batches))
            for number, row in enumerate(rows, start=1):
                yield f"{path.name}: row {number}", row
    except (ArrowException, OSError) as error:
        raise DataError(f"{path}: {first_line(error)}") from error


def _batch_rows(batch: Any) -> Iterator[Row]:
    """Yield the rows of a record batch in small parts, because a batch may be a whole file."""
    for begin in range(0, batch.num_rows, BATCH_ROWS):
        yield from batch.slice(begin, BATCH_ROWS).to_pylist()


def load_rows(data: str, config: str | None, labelled: bool = True) -> dict[str, Rows]:
    """Return the rows of each split of a data set.

    Args:
        labelled: False to include rows without an answer from exports of annotation tools.
        data: file, folder, `generated:train=N,validation=N,seed=N`, or name for
            `datasets.load_dataset`, see `split_revision`.

    Raises:
        TrainError: the data cannot be loaded, or have no splits.
    """
    if data.startswith(GENERATED):
        return _generated(data.removeprefix(GENERATED))
    if not Path(data).exists():
        return _from_hub(data, config)
    rows: dict[str, Rows] = {
        split: (ArrowRows if read_on_hosts(files[0]) else Table)(files, labelled)
        for split, files in files_of(Path(data)).items()
    }
    if not rows:
        raise TrainError(f"data '{data}' has no file that ends in {', '.join(TABLES)}")
    return rows


def _generated(settings: str) -> dict[str, Rows]:
    """Return generated sentence pairs; settings are `train=N,validation=N,seed=N`."""
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


def _from_hub(data: str, config: str | None) -> dict[str, Any]:
    import datasets  # takes seconds

    datasets.disable_progress_bars()
    name, revision = split_revision(data)
    try:
        return dict(datasets.load_dataset(name, config, revision=revision))
    except Exception as error:  # load_dataset may raise any exception
        raise TrainError(
            f"data '{data}' cannot be loaded: {first_line(error)}",
            f"use a file or a folder with data for the task: --data PATH; {WITH_TOKEN}",
        ) from error


def dataset_version(name: str, config: str | None) -> dict[str, list[str]]:
    """Return strings that change when a data set on the Hub changes, by split.

    Raises:
        TrainError: the data set cannot be loaded.
    """
    # the names of cached files contain configuration, version and commit
    return {
        split: [file["filename"] for file in rows.cache_files] or [uuid.uuid4().hex]
        for split, rows in _from_hub(name, config).items()
    }


def class_names(rows: Rows, label: str) -> list[str]:
    """Return the class names of a column, or [] if the data do not have them.

    Data sets on the Hub, Parquet files and Arrow files can have class names.

    Raises:
        TrainError: several classes have the same name.
    """
    names: list[str]
    if hasattr(rows, "class_names"):
        names = rows.class_names(label)
    else:
        kind = getattr(rows, "features", {}).get(label)
        names = list(getattr(getattr(kind, "feature", kind), "names", None) or ())
    if len(set(names)) < len(names):
        raise TrainError(f"classes of column {label} have the same name: {', '.join(names)}")
    return names


def host_export_notes(rows: Rows, split: str) -> list[str]:
    """Return notes on exports of annotation tools, for files that are read only on the hosts."""
    return rows.export_notes(split) if isinstance(rows, ArrowRows) else []


def columns_of(rows: Rows) -> list[str]:
    """Return the column names of the first row, or [] if there are no rows."""
    return list(next(iter(rows), {}))


def check_rows(rows: Rows, split: str, options: Options, answered: bool) -> None:
    """Check that the rows of a split have the columns and values that the task needs.

    Rows of text files are skipped: the machine that runs the command has checked them.

    Raises:
        TrainError: some rows are invalid; the message lists the first problems with their rows.
    """
    if isinstance(rows, Table):
        return
    check: CheckRow | None = None
    problems: list[str] = []
    try:
        for where, row in places(rows, split):
            check = check or spec_of(options).row_check(options, answered, list(row))
            if problem := check(row):
                problems.append(f"{where}: {problem}")
            if len(problems) >= MOST_PROBLEMS:
                break
    except DataError as error:
        problems.append(f"{split}: {error}")
    if problems:
        raise TrainError("; ".join(problems), "the rows are not valid for this task")


def find_columns(rows: Rows, split: str, choose: Callable[[list[str]], T]) -> T:
    """Call `choose` with the column names of rows, and return its result.

    Raises:
        TrainError: `choose` rejects the columns.
    """
    try:
        return choose(columns_of(rows))
    except DataError as error:
        raise TrainError(f"{split} has {error}") from error


def places(rows: Rows, split: str) -> Iterator[tuple[str, Row]]:
    """Yield each row with its place, such as `train.csv:7`; for data on the Hub `row 7 of train`.

    Raises:
        DataError: a row or a file cannot be read.
    """
    with_places = getattr(rows, "with_places", None)
    if with_places is None:
        with_places = lambda: ((f"row {n} of {split}", row) for n, row in enumerate(rows, start=1))  # noqa: E731
    for where, row in with_places():
        if isinstance(row, DataError):
            raise row
        yield where.rpartition("/")[2], row


def read_rows(rows: Rows, split: str, read: Callable[[Row], T]) -> Iterator[tuple[str, T]]:
    """Call `read` with each row, and yield the row's place and the result.

    Raises:
        TrainError: a row cannot be read; the message contains the row's place.
    """
    for where, row in places(rows, split):
        try:
            yield where, read(row)
        except DataError as error:
            raise TrainError(f"{where}: {error}") from error


def column_batches(
    rows: Rows, columns: Sequence[str], where: str
) -> Iterator[dict[str, list[Any]]]:
    """Yield batches of rows; each batch has a list of values for each column.

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
                    f"{found_columns(row)}"
                )
        yield {name: [row[name] for _, row in batch] for name in columns}


@dataclass(frozen=True)
class TextFiles:
    """Text files, read as a stream of pieces; each file is one text."""

    paths: tuple[Path, ...]

    def __iter__(self) -> Iterator[Piece]:
        for path in self.paths:
            try:
                with open_text(path, "utf-8") as lines:
                    yield from pieces(lines)
            except UnicodeDecodeError as error:
                raise TrainError(f"{path}: not UTF-8: {error.reason}") from error

    def documents(self, paragraphs: bool) -> Iterator[str]:
        """Yield each line of the files that is not blank.

        Args:
            paragraphs: True to yield paragraphs instead, which blank lines separate.
        """
        for path in self.paths:
            try:
                with open_text(path, "utf-8") as lines:
                    for is_text, group in itertools.groupby(lines, lambda line: bool(line.strip())):
                        if is_text and paragraphs:
                            yield "".join(group)
                        elif is_text:
                            yield from (line.rstrip("\n") for line in group)
            except UnicodeDecodeError as error:
                raise TrainError(f"{path}: not UTF-8: {error.reason}") from error


@dataclass(frozen=True)
class TextRows:
    """A column of rows, read as a stream of pieces; each row is one text."""

    rows: Rows
    column: str
    where: str

    def __iter__(self) -> Iterator[Piece]:
        for text in self.documents(False):
            yield from pieces(io.StringIO(text))

    def documents(self, paragraphs: bool) -> Iterator[str]:  # noqa: ARG002 - a row is one text
        """Yield the text of each row."""
        for number, row in enumerate(self.rows, start=1):
            text = row.get(self.column)
            if not isinstance(text, str):
                raise TrainError(
                    f"row {number} of {self.where} has no text in column {self.column}; "
                    f"{found_columns(row)}",
                    "name the column: text_column=NAME",
                )
            yield text


Texts = TextFiles | TextRows


def load_texts(
    data: str, config: str | None, options: Options, tests: bool = False
) -> dict[str, Texts]:
    """Return the texts of the splits train and validation; validation may be missing.

    Args:
        data: text file *.txt, folder with such files, or other data, see `load_rows`. Each text
            file is one text.
        options: task options, which name the text column of data that has rows.
        tests: True to also return the split test, if the data have one.

    Raises:
        TrainError: the data cannot be loaded, or have no split train.
        DataError: the data have no column with texts.
    """
    names = (TRAIN, VALIDATION, *([TEST] if tests else []))
    if texts := texts_of(Path(data)):
        if TRAIN not in texts:
            raise TrainError(
                f"data '{data}' has no texts to train on; it has texts for {', '.join(texts)}",
                "rename files: all except test.txt and validation.txt are used for training",
            )
        return {split: TextFiles(texts[split]) for split in names if split in texts}
    rows = load_rows(data, config)
    if TRAIN not in rows:
        raise TrainError(
            f"data '{data}' has no split train; found {', '.join(rows)}",
            "use a folder with texts in *.txt: --data DIR",
        )
    [column] = spec_of(options).columns(options, columns_of(rows[TRAIN]), True)["text"]
    return {
        split: TextRows(rows[split], column, f"{split} of {data}")
        for split in names
        if split in rows
    }
