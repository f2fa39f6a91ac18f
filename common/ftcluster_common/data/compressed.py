"""Opens data files that may be compressed with gzip. Standard library only.

Python reads zstd only since 3.14, and no locked stack contains a library for it, so users must
unpack such files.
"""

import gzip
import io
import zlib
from errno import EIO
from pathlib import Path
from typing import BinaryIO, TextIO, cast

from ftcluster_common.data.rows import DataError

GZIP = ".gz"
# extensions of files that are read through gzip
INSIDE = (".csv", ".tsv", ".json", ".jsonl", ".txt", ".conll", ".bio", ".iob", ".iob2")
# commands that unpack other archives, by extension
UNPACK = {
    ".zst": "zstd -d", ".bz2": "bunzip2 -k", ".xz": "unxz -k", ".zip": "unzip", ".7z": "7z x",
    ".gz": "gunzip -k", ".tgz": "tar -xf", ".tar": "tar -xf",
}  # fmt: skip
# gzip compresses at most about 1030-fold; data files compress 5- to 20-fold
MOST_RATIO = 250
FREE_BYTES = 256 << 20  # unpacked size in bytes up to which the ratio is not checked


def kind_of(path: Path) -> str:
    """Return a file's extension in lower case; for a data file in gzip, the one before `.gz`.

    >>> kind_of(Path("a.CSV")), kind_of(Path("train.jsonl.gz")), kind_of(Path("a.tar.gz"))
    ('.csv', '.jsonl', '.gz')
    """
    ending = path.suffix.lower()
    inside = Path(path.stem).suffix.lower()
    return inside if ending == GZIP and inside in INSIDE else ending


def stem_of(path: Path) -> str:
    """Return a file's name without its extension, and without `.gz`.

    >>> stem_of(Path("a/train.jsonl.gz")), stem_of(Path("v1.2.csv"))
    ('train', 'v1.2')
    """
    return Path(path.stem).stem if kind_of(path) != path.suffix.lower() else path.stem


class _Unpacked(io.RawIOBase):
    """The unpacked bytes of a gzip file; raises DataError if there are suspiciously many."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = gzip.GzipFile(path, "rb")
        self._limit = max(FREE_BYTES, MOST_RATIO * path.stat().st_size)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]
        try:
            data = self._file.read(len(buffer))
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise OSError(EIO, f"the gzip data are damaged: {error}") from error
        if self._file.tell() > self._limit:
            raise DataError(
                f"{self._path} unpacks to more than {self._limit:,} bytes, at least {MOST_RATIO} "
                "times its size, as only damaged or malicious files do; if the file is right, "
                f"unpack it: gunzip -k {self._path.name}"
            )
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


def open_bytes(path: Path) -> BinaryIO:
    """Open a file, which may be compressed with gzip, to read its bytes.

    Raises:
        OSError: the file cannot be read.
    """
    if path.suffix.lower() != GZIP:
        return path.open("rb")
    return cast(BinaryIO, io.BufferedReader(_Unpacked(path), 1 << 16))


def open_text(path: Path, encoding: str, newline: str | None = None) -> TextIO:
    """Open a file, which may be compressed with gzip, to read its text.

    Raises:
        OSError: the file cannot be read.
    """
    if path.suffix.lower() != GZIP:
        return path.open(encoding=encoding, newline=newline)
    return io.TextIOWrapper(open_bytes(path), encoding=encoding, newline=newline)


def unpack_hint(path: Path) -> str:
    """Return the advice to unpack an archive, with a command; "" if the file is no archive."""
    ending = path.suffix.lower()
    command = UNPACK.get(".tar" if path.stem.lower().endswith(".tar") else ending)
    return f"unpack it first: {command} {path.name}" if command and ending in UNPACK else ""
