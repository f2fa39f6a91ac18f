"""Finds the data files of each split, and reads their rows. Standard library only.

Parquet and Arrow files are read in `ftcluster_train.engine.data.sources`.
"""

import codecs
import csv
import json
import math
import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from string import ascii_letters
from typing import Any

from ftcluster_common.data.compressed import kind_of as kind_of
from ftcluster_common.data.compressed import open_bytes, open_text, stem_of
from ftcluster_common.data.conll import looks_like_conll, sentences
from ftcluster_common.data.importers.exports import Source, converted, export_notes
from ftcluster_common.data.json_documents import (
    JsonDocumentError,
    NotADocumentError,
    rows_of_document,
)
from ftcluster_common.data.rows import DataError as DataError
from ftcluster_common.data.rows import Row as Row
from ftcluster_common.data.rows import found_columns as found_columns
from ftcluster_common.data.rows import short as short
from ftcluster_common.data.saved_datasets import ARROW, is_saved, saved_files
from ftcluster_common.given_files import parse_json

PARQUET, TEXT = ".parquet", ".txt"
HOSTS_ONLY = (PARQUET, ARROW)  # extensions of files that only hosts can read
CONLL = ".conll"
TABLES = (".csv", ".tsv", ".json", ".jsonl", PARQUET, ARROW)
SENTENCES = (TEXT, ".tsv", ".bio", ".iob", ".iob2")  # extensions that may hold CoNLL
TRAIN, VALIDATION, TEST = "train", "validation", "test"
WORDS = {  # splits by the words that name them in file names, as in the library datasets
    "train": TRAIN, "training": TRAIN,
    "validation": VALIDATION, "valid": VALIDATION, "val": VALIDATION, "dev": VALIDATION,
    "test": "test", "testing": "test", "eval": "test",
}  # fmt: skip
# files of BEIR: texts, queries, and qrels/*.tsv with the matching texts of each query
CORPUS, QUERIES, JUDGEMENTS = "corpus.jsonl", "queries.jsonl", "qrels"
MOST_NEGATIVES = 100  # maximum number of texts of a corpus in a row
INDEX = "Unnamed: 0"  # pandas' name for an index column without a name
SEPARATOR = re.compile(r"\ufeff?sep=(.)\r?\n")
BLOCK = 1 << 20  # bytes per read
# maximum length of a CSV field: if a quote is missing, the field would be the rest of the file
MOST_CHARACTERS = 1 << 26
SHARD = re.compile(r"-\d+-of-\d+$")  # suffix of a file that is split into parts on the Hub

WESTERN = "cp1252"
ACCENTED = bytes(range(0xC0, 0x100))  # bytes of letters in Windows-1252 outside ASCII
LETTERS = ascii_letters.encode()
MOST_ACCENTED = 0.25  # maximum share of accented letters; in French and German, it is below 0.05
CONVERT = "convert it: iconv -f ENCODING -t UTF-8 FILE > NEW"

Files = tuple[Path, ...]


def read_on_hosts(path: Path) -> bool:
    """Return True if only hosts can read a file."""
    return kind_of(path) in HOSTS_ONLY


def files_of(path: Path) -> dict[str, Files]:
    """Return the files that contain the rows of each split.

    Files whose names contain no split (reviews.csv) belong to `train` if no other file belongs to
    it. In a BEIR folder, the validation set is qrels/dev.tsv, or test.tsv if there is no dev.tsv.

    Args:
        path: a file, or a folder that contains the files directly or in its subfolder `data`.

    Raises:
        DataError: the files of a split have several formats, or a folder that `save_to_disk` wrote
            is damaged.
    """
    if path.is_file():
        return {TRAIN: (path,)} if _has_rows(path) or is_conll(path) else {}
    if is_saved(path):
        saved: dict[str, Files] = {}
        for name, files in saved_files(path).items():
            split = WORDS.get(name.lower(), name) or TRAIN
            saved[split] = (*saved.get(split, ()), *files)
        return saved
    tables = sorted(file for file in path.glob("*") if file.is_file() and _has_rows(file))
    if not tables and (path / "data").is_dir():
        return files_of(path / "data")
    splits: dict[str, Files] = {}
    if {CORPUS, QUERIES} <= {file.name for file in tables} and (path / JUDGEMENTS).is_dir():
        tables = [file for file in tables if file.name not in (CORPUS, QUERIES)]
        judged = {_split_of(file): (file,) for file in sorted((path / JUDGEMENTS).glob("*.tsv"))}
        judgements = {
            TRAIN: judged.get(TRAIN),
            VALIDATION: judged.get(VALIDATION, judged.get("test")),
        }
        splits = {split: files for split, files in judgements.items() if files}
    for file in tables:
        splits[_split_of(file)] = (*splits.get(_split_of(file), ()), file)
    if TRAIN not in splits:
        nameless = [name for name in splits if not name.startswith((VALIDATION, "test"))]
        if nameless:
            splits = {TRAIN: sum((splits.pop(name) for name in nameless), ())} | splits
    for name, files in splits.items():
        if len(set(map(kind_of, files))) > 1:
            names = ", ".join(file.name for file in files)
            raise DataError(
                f"{path} contains files of split {name} in several formats: {names}; keep only one"
            )
    return splits


def texts_of(path: Path) -> dict[str, Files]:
    """Return the text files of each split; {} if the data are rows.

    Args:
        path: a file or a folder. All texts belong to `train`, except files named for validation or
            tests, such as validation.txt and wiki.test.txt.
    """
    if path.is_file():
        return {TRAIN: (path,)} if kind_of(path) == TEXT else {}
    texts = sorted(file for file in path.glob("*") if kind_of(file) == TEXT)
    if any(_split_of(file) == TRAIN for file in path.glob("*") if kind_of(file) in TABLES):
        texts = []
    splits: dict[str, Files] = {}
    for file in texts:
        split = WORDS.get(stem_of(file).lower().rpartition(".")[2], TRAIN)
        splits[split] = (*splits.get(split, ()), file)
    return splits


def _split_of(file: Path) -> str:
    """Return the split in a file's name; if it contains none, return the name without its ending.

    >>> [_split_of(Path(name)) for name in ("imdb_Train.csv", "dev-00000-of-00002.parquet")]
    ['train', 'validation']
    >>> [_split_of(Path(name)) for name in ("validation_matched.jsonl", "reviews.csv")]
    ['validation_matched', 'reviews']
    """
    name = SHARD.sub("", stem_of(file))
    if name.startswith((f"{VALIDATION}_", "test_")):
        return name
    splits = {WORDS[word] for word in re.split(r"[^a-z]+", name.lower()) if word in WORDS}
    return splits.pop() if len(splits) == 1 else name


@dataclass(frozen=True)
class Table:
    """The rows of files that every machine can read; can be iterated several times.

    Rows of annotation tools' exports are converted, see `importers.exports`.

    Attributes:
        labelled: False to include rows of exports that have no answer to train on.
    """

    paths: Files
    labelled: bool = True

    def __iter__(self) -> Iterator[Row]:
        for _, row in self.with_places():
            if isinstance(row, DataError):
                raise row
            yield row

    def with_places(self) -> Iterator[tuple[str, Row | DataError]]:
        """Yield the place of each row, such as train.csv:7, with the row or its problem.

        Raises:
            DataError: a file cannot be read.
        """
        yield from converted(self._sources(), self.labelled)

    def export_notes(self, name: str) -> list[str]:
        """Return notes about exports of annotation tools among the files.

        Args:
            name: name of the set, for the notes.

        Raises:
            DataError: a file cannot be read.
        """
        return export_notes(self._sources(), name)

    def _sources(self) -> list[Source]:
        return [partial(_raw_rows, path) for path in self.paths]


def _raw_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the place of each row of a file, with the row or its problem.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        for where, row in _reader_of(path)(path):
            usable = isinstance(row, dict | DataError)
            yield where, row if usable else DataError(f"{where}: the row must be a JSON object")
    except UnicodeDecodeError as error:
        what = f"not UTF-8: {error.reason} at byte {error.start}"
        raise DataError(f"{path}: {what}; {CONVERT}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def encoding_of(path: Path) -> str:
    """Return the encoding of a CSV or TSV file: UTF-8, UTF-16 with its mark, or Windows-1252.

    Nearly any bytes decode as Windows-1252, but only western European texts are written in it. If
    too many letters would be accented, the text must be in another alphabet.

    Raises:
        DataError: the encoding is none of these. The message names the first line that does not
            fit, if known.
        OSError: the file cannot be read.
    """
    lines = 1
    decoders = {name: codecs.getincrementaldecoder(name)() for name in ("utf-8-sig", WESTERN)}
    with open_bytes(path) as content:
        if content.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            return "utf-16"
        content.seek(0)
        while decoders and (block := content.readline(BLOCK)):
            for name in list(decoders):
                try:
                    decoders[name].decode(block)
                except UnicodeDecodeError:
                    del decoders[name]
            lines += decoders.keys() != set() and block.endswith(b"\n")
    if not decoders:
        raise DataError(f"{path}:{lines}: neither UTF-8 nor Windows-1252; {CONVERT}")
    encoding = next(iter(decoders))
    if encoding == WESTERN and _accented(path) > MOST_ACCENTED:
        raise DataError(f"{path}: not UTF-8, and its encoding is unknown; {CONVERT}")
    return encoding


def _accented(path: Path) -> float:
    """Return the share of accented letters among the letters of a file in Windows-1252."""
    counts = {ACCENTED: 0, LETTERS: 0}
    with open_bytes(path) as content:
        while block := content.read(BLOCK):
            for letters in counts:
                counts[letters] += len(block) - len(block.translate(None, letters))
    return counts[ACCENTED] / max(1, sum(counts.values()))


def _csv(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the rows of a file whose first line contains the column names.

    In TSV files a quote is an ordinary character, as in GLUE's files.
    """
    csv.field_size_limit(MOST_CHARACTERS)
    with open_text(path, encoding_of(path), newline="") as lines:
        first = lines.readline()
        separator = SEPARATOR.match(first)  # the line `sep=;`, which Excel reads
        if not separator:
            lines.seek(0)
        others = [mark for mark in ("\t", ";") if mark in first and "," not in first]
        delimiter = (
            separator[1] if separator else "\t" if kind_of(path) == ".tsv" else [*others, ","][0]
        )
        reader = csv.reader(
            lines,
            delimiter=delimiter,
            quoting=csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL,
            strict=True,
        )
        header: list[str] = []
        begin = 1
        try:
            for cells in reader:
                where, begin = f"{path}:{begin + bool(separator)}", reader.line_num + 1
                if not cells:
                    continue
                if not header:
                    header = _header(cells, where)
                    continue
                nameless = cells[len(header) :]
                if len(cells) < len(header) or any(cell.strip() for cell in nameless):
                    have = f"{len(cells)} values for {len(header)} columns"
                    yield where, DataError(f"{where}: {have} ({', '.join(header)})")
                else:
                    yield where, dict(zip(header, cells, strict=False))
        except csv.Error as error:
            what = f"{error}; the row begins at line {begin + bool(separator)}"
            way = "in CSV, a quote within a quoted field must be written twice"
            raise DataError(f"{path}:{reader.line_num + bool(separator)}: {what}; {way}") from error


def _header(cells: Sequence[str], where: str) -> list[str]:
    """Return the names of the columns, without unnamed ones at the end."""
    header = [cell.strip() for cell in cells]
    while header and not header[-1]:
        header.pop()
    if header:
        header[0] = header[0] or INDEX
    if "" in header or not header:
        raise DataError(f"{where}: the first line must contain column names, got {cells}")
    if twice := sorted({name for name in header if header.count(name) > 1}):
        raise DataError(f"{where}: several columns are called {', '.join(twice)}; rename them")
    return header


def _json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    with open_text(path, "utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield f"{path}:{number}", _json_value(line, path, number)


def _json(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the rows of a document: its list, or the only list in its object; or of JSON lines."""
    try:
        rows = rows_of_document(lambda: open_text(path, "utf-8-sig"))
        for number, row in enumerate(_flat(rows), start=1):
            yield f"{path}: row {number}", row
    except NotADocumentError:
        yield from _json_lines(path)
    except JsonDocumentError as error:
        raise DataError(f"{path}:{error.line}: not valid JSON: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: not in SQuAD's format: {error!r}") from error


def _flat(rows: Iterable[Any]) -> Iterator[Any]:
    """Yield rows; an article of SQuAD's original files becomes one row for each question."""
    for row in rows:
        if not isinstance(row, dict) or "paragraphs" not in row:
            yield row
            continue
        for paragraph in row["paragraphs"]:
            for asked in paragraph["qas"]:
                answers = asked.get("answers") or []
                yield {
                    "id": asked.get("id", ""),
                    "question": asked["question"],
                    "context": paragraph["context"],
                    "answers": {
                        name: [answer[name] for answer in answers]
                        for name in ("text", "answer_start")
                    },
                }


def _judged(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield a row for each pair of a query and a matching text in BEIR's judgements.

    For an evaluation, the rows also contain all texts of the corpus as negatives, so that each
    query searches the whole corpus. Each row gets the same number of texts, without those that
    match its query. Only the judged texts and the texts of one row are kept in memory.
    """
    judged: dict[str, set[str]] = {}  # ids of the judged texts of each query
    matching: dict[str, set[str]] = {}
    for _, row in _csv(path):
        if not isinstance(row, DataError):
            query, text = row.get("query-id", ""), row.get("corpus-id", "")
            judged.setdefault(query, set()).add(text)
            if _is_positive(row):
                matching.setdefault(query, set()).add(text)
    folder = path.parents[1]
    queries, _ = _by_id(folder / QUERIES, judged.keys())
    corpus, count = _by_id(folder / CORPUS, set[str]().union(*judged.values()))
    pairs = sum(map(len, matching.values()))
    trains = _split_of(path) == TRAIN
    size = 0 if trains else min(MOST_NEGATIVES, math.ceil(count / max(pairs, 1)))
    others: Iterator[tuple[str, str]] = iter(())
    if not trains:
        others = _texts_by_id(folder / CORPUS)
    last: tuple[str, str, str] | None = None

    def with_negatives(query: str, text: str, negatives: Iterable[tuple[str, str]]) -> Row:
        row: Row = {"query": queries[query], "positive": corpus[text]}
        wrong = [other for number, other in negatives if other and number not in matching[query]]
        return row if trains else {**row, "negative": wrong}

    for where, row in _csv(path):
        if isinstance(row, DataError):
            yield where, row
            continue
        query, text, score = (row.get(name, "") for name in ("query-id", "corpus-id", "score"))
        missing = [f"{QUERIES} contains no _id {query}"] if query not in queries else []
        missing += [f"{CORPUS} contains no _id {text}"] if text not in corpus else []
        if not score.strip().lstrip("-").isdecimal():
            missing.append(f"score must be a whole number, got {short(score)}")
        if missing:
            yield where, DataError(f"{where}: {'; '.join(missing)}")
        elif _is_positive(row):
            last = where, query, text
            yield where, with_negatives(query, text, islice(others, size))
    if last:
        where, query, text = last
        while negatives := list(islice(others, size)):
            yield where, with_negatives(query, text, negatives)


def _is_positive(judgement: Row) -> bool:
    """Return True if a judgement's score is a whole number above 0."""
    score = judgement.get("score", "").strip()
    return score.isdecimal() and any(map(int, score))


def _texts_by_id(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the id of each text of a BEIR file, and its title and text.

    Raises:
        DataError: a line has no _id or text; the message names the line.
    """
    for where, row in _json_lines(path):
        if isinstance(row, DataError):
            raise row
        if not isinstance(row, dict) or not {"_id", "text"} <= row.keys():
            raise DataError(f"{where}: the line must be an object with _id and text")
        yield str(row["_id"]), f"{row.get('title') or ''} {row['text'] or ''}".strip()


def _by_id(path: Path, wanted: Container[str]) -> tuple[dict[str, str], int]:
    """Return the wanted texts of a BEIR file by their ids, and the number of all texts.

    Raises:
        DataError: see `_texts_by_id`.
    """
    texts: dict[str, str] = {}
    count = 0
    for number, text in _texts_by_id(path):
        count += 1
        if number in wanted:
            texts[number] = text
    return texts, count


def _json_value(line: str, path: Path, number: int) -> Any:
    try:
        return parse_json(line)
    except json.JSONDecodeError as error:
        what = f"{error.msg} at column {error.colno}"
    except ValueError as error:
        what = str(error)
    return DataError(f"{path}:{number}: not valid JSON: {what}")


def _has_rows(path: Path) -> bool:
    kind = kind_of(path)
    return kind in (*TABLES, CONLL) or (kind in SENTENCES and is_conll(path))


def is_conll(path: Path) -> bool:
    """Return True if the first lines of a file are sentences in CoNLL format."""
    try:
        with open_text(path, "utf-8-sig") as lines:
            return looks_like_conll(lines)
    except (OSError, ValueError):
        return False


def _conll(path: Path) -> Iterator[tuple[str, Any]]:
    with open_text(path, "utf-8-sig") as lines:
        for number, found in sentences(lines):
            where = f"{path}:{number}"
            yield where, DataError(f"{where}: {found}") if isinstance(found, str) else found


def _reader_of(path: Path) -> Callable[[Path], Iterator[tuple[str, Any]]]:
    if path.parent.name == JUDGEMENTS:
        return _judged
    if kind_of(path) == ".tsv" and is_conll(path):
        return _conll
    return _READERS.get(kind_of(path), _conll)


_READERS = {".csv": _csv, ".tsv": _csv, ".json": _json, ".jsonl": _json_lines}
