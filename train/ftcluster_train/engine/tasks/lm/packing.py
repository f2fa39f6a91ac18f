"""Division of a token stream into blocks of equal length. Standard library only."""

from collections.abc import Iterator, Sequence


class Packer:
    """Divides a stream of tokens into blocks.

    Attributes:
        left: tokens that do not fill a block yet.
    """

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self.left: list[int] = []

    def add(self, tokens: Sequence[int]) -> Iterator[list[int]]:
        """Append tokens, and yield each block that becomes full."""
        self.left.extend(tokens)
        whole = len(self.left) // self._size * self._size
        blocks, self.left = self.left[:whole], self.left[whole:]
        for begin in range(0, whole, self._size):
            yield blocks[begin : begin + self._size]
