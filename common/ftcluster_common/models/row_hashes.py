"""Reads and writes ftcluster.rows: the hashes of the rows that a model was trained on.

The file is in the folder of the trained model. Standard library only.
"""

import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

ROWS = "ftcluster.rows"
HASH_BYTES = 8
BITS_BELOW = 8 * HASH_BYTES - 8  # number of bits in a hash without its first byte
PARTS = 256  # one part for each value of the first byte


def hash_of(ids: Sequence[int]) -> int:
    """Return the hash of a row's token ids as a 64-bit integer."""
    return _hash(array("q", ids).tobytes())


def hash_of_text(text: str) -> int:
    """Return the hash of a text as a 64-bit integer."""
    return _hash(text.encode())


def _hash(content: bytes) -> int:
    digest = hashlib.blake2b(content, digest_size=HASH_BYTES).digest()
    return int.from_bytes(digest, "little")


class RowHashes:
    """A set of hashes that needs only 8 bytes per hash.

    A Python `set` of integers needs about 70 bytes per element, which is too much if the training
    data are larger than memory.
    """

    def __init__(self, hashes: Iterable[int] = ()) -> None:
        # Each part contains the hashes with the same first byte: sorting one part at a time saves
        # memory.
        self._parts = [array("Q") for _ in range(PARTS)]
        self._unsorted: set[int] = set()
        for number in hashes:
            self.add(number)

    def add(self, number: int) -> None:
        """Add a hash."""
        part = number >> BITS_BELOW
        self._parts[part].append(number)
        self._unsorted.add(part)

    def __contains__(self, number: int) -> bool:
        hashes = self._sorted(number >> BITS_BELOW)
        place = bisect_left(hashes, number)
        return place < len(hashes) and hashes[place] == number

    def __iter__(self) -> Iterator[int]:
        """Iterate over the hashes in ascending order."""
        for part in range(PARTS):
            yield from self._sorted(part)

    def __len__(self) -> int:
        return sum(len(self._sorted(part)) for part in range(PARTS))

    def _sorted(self, part: int) -> "array[int]":
        """Return the hashes of a part in ascending order, without duplicates."""
        if part in self._unsorted:
            self._parts[part] = array("Q", sorted(set(self._parts[part])))
            self._unsorted.discard(part)
        return self._parts[part]


def write_rows(path: Path, hashes: RowHashes) -> None:
    """Write the hashes of a model's training rows in ascending order."""
    path.write_bytes(array("Q", hashes).tobytes())


def read_rows(folder: Path) -> RowHashes:
    """Return the hashes of a model's training rows; empty if they are unknown."""
    try:
        content = (folder / ROWS).read_bytes()
    except OSError:
        return RowHashes()
    return RowHashes(array("Q", content[: len(content) // HASH_BYTES * HASH_BYTES]))
