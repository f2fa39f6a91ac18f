"""Texts of any length as samples of one length, for causal language models."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

PIECE = 1 << 18  # characters of a text that are tokenised at once
OPEN_BINS = 256  # that may still get a document

Document = TypeVar("Document")


class Packer:
    """Cuts a stream of tokens into blocks.

    Attributes:
        left: tokens that do not fill a block yet.
    """

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self.left: list[int] = []

    def add(self, tokens: Sequence[int]) -> Iterator[list[int]]:
        """Append tokens; yields each block that they fill."""
        self.left.extend(tokens)
        whole = len(self.left) // self._size * self._size
        blocks, self.left = self.left[:whole], self.left[whole:]
        for begin in range(0, whole, self._size):
            yield blocks[begin : begin + self._size]


class DocumentPacker(Generic[Document]):
    """Puts whole documents into bins, each into the fullest one that has room for it.

    Args:
        size: tokens of a bin.
        open_bins: of so many bins the fullest is closed.
    """

    def __init__(self, size: int, open_bins: int = OPEN_BINS) -> None:
        self._size, self._open_bins = size, open_bins
        self._rooms: list[int] = []  # ascending
        self._bins: list[list[Document]] = []

    def add(self, document: Document, length: int) -> Iterator[list[Document]]:
        """Add a document of so many tokens; yields a bin that is closed."""
        place = bisect_left(self._rooms, length)
        filled, room = [document], self._size - length
        if place < len(self._rooms):
            room = self._rooms.pop(place) - length
            filled = [*self._bins.pop(place), document]
        if room <= 0:
            yield filled
            return
        place = bisect_left(self._rooms, room)
        self._rooms.insert(place, room)
        self._bins.insert(place, filled)
        if len(self._bins) > self._open_bins:
            self._rooms.pop(0)
            yield self._bins.pop(0)

    def close(self) -> Iterator[list[Document]]:
        """The bins that are left."""
        yield from self._bins
        self._bins, self._rooms = [], []


@dataclass(frozen=True)
class Piece:
    """A part of a text; `last` if the text ends with it."""

    text: str
    last: bool


def pieces(lines: Iterable[str], size: int = PIECE) -> Iterator[Piece]:
    """A text in pieces of at least `size` characters, except the last one.

    It is cut only before a line that starts with a non-blank: tokenizers that split at blanks
    first, as GPT-2's, give the same tokens as for the whole text.
    """
    held: list[str] = []
    length = 0
    for line in lines:
        if length >= size and not line[0].isspace():
            yield Piece("".join(held), last=False)
            held, length = [], 0
        held.append(line)
        length += len(line)
    if held:
        yield Piece("".join(held), last=True)
