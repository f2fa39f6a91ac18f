"""Sets and numberings of hashes in little memory, and the file ftcluster.rows.

The file is in the folder of a trained model, and contains the hashes of the rows that the model was
trained on. Standard library only.
"""

import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

ROWS = "ftcluster.rows"
HASH_BYTES = 8
BITS_BELOW = 8 * HASH_BYTES - 8  # number of bits in a hash without its first byte
FEWEST_SLOTS = 1024  # of a new HashNumbers; a power of 2
MOST_FILLED = 2 / 3  # maximum fraction of slots in use
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


class HashNumbers:
    """Numbers hashes in the order in which they are added, with 14 to 20 bytes per hash.

    A Python `dict` of integers needs about 130 bytes per element. This class is a hash table with
    open addressing and linear probing (Knuth, The Art of Computer Programming 3, section 6.4).
    """

    def __init__(self) -> None:
        self._hashes = array("Q")
        self._slots = array("I", [0]) * FEWEST_SLOTS  # each number plus 1, or 0

    def __len__(self) -> int:
        return len(self._hashes)

    def add(self, number: int) -> int:
        """Return the number of a 64-bit hash; a new hash gets the next number."""
        slot = self._slot_of(number)
        if not self._slots[slot]:
            self._hashes.append(number)
            self._slots[slot] = len(self._hashes)
            if len(self._hashes) > len(self._slots) * MOST_FILLED:
                self._grow()
            return len(self._hashes) - 1
        return self._slots[slot] - 1

    def get(self, number: int) -> int | None:
        """Return the number of a hash; None if the hash was not added."""
        entry = self._slots[self._slot_of(number)]
        return entry - 1 if entry else None

    def _slot_of(self, number: int) -> int:
        """Return the slot of a hash, or the empty slot where it belongs."""
        slots, hashes, mask = self._slots, self._hashes, len(self._slots) - 1
        slot = number & mask
        while (entry := slots[slot]) and hashes[entry - 1] != number:
            slot = (slot + 1) & mask
        return slot

    def _grow(self) -> None:
        self._slots = array("I", [0]) * (2 * len(self._slots))
        for entry, number in enumerate(self._hashes, start=1):
            self._slots[self._slot_of(number)] = entry


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
