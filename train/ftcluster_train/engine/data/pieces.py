"""Divide long texts into pieces for a tokenizer. Standard library only."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

PIECE = 1 << 18  # minimum number of characters of a piece, except the last


@dataclass(frozen=True)
class Piece:
    """A part of a text; `last` is True for the last piece of the text."""

    text: str
    last: bool


def pieces(lines: Iterable[str], size: int = PIECE) -> Iterator[Piece]:
    """Yield a text in pieces of at least `size` characters, except the last piece.

    The text is cut only before lines that do not start with white space. Tokenizers that first
    split at white space, such as GPT-2's, then produce the same tokens as for the whole text.
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
