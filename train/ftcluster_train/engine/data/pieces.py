"""Long texts in pieces that a tokenizer reads at once. Standard library only."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

PIECE = 1 << 18  # characters of a text that are tokenised at once


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
