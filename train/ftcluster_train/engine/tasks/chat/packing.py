"""Packing of whole documents into samples. Standard library only."""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Generic, TypeVar

OPEN_BINS = 256  # default maximum number of open bins

Document = TypeVar("Document")


class DocumentPacker(Generic[Document]):
    """Packs each document into the fullest bin that has enough room.

    Args:
        size: capacity of a bin in tokens.
        open_bins: maximum number of open bins; if it is exceeded, the fullest bin is closed.
    """

    def __init__(self, size: int, open_bins: int = OPEN_BINS) -> None:
        self._size, self._open_bins = size, open_bins
        self._rooms: list[int] = []  # free tokens of each bin, ascending
        self._bins: list[list[Document]] = []

    def add(self, document: Document, length: int) -> Iterator[list[Document]]:
        """Add a document of `length` tokens, and yield the bin that this closes, if any."""
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
        """Yield the remaining bins."""
        yield from self._bins
        self._bins, self._rooms = [], []
