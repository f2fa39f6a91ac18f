"""Texts of any length as blocks of one length, for causal language models."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

PIECE = 1 << 18  # characters of a text that are tokenised at once


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
