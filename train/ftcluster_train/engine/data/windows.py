"""Divide long rows into overlapping windows.

Neighbouring windows share tokens, so that every token has some context. Only one of the two windows
labels a shared token: the one in which the token is farther from the edge. Standard library only.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Window:
    """A part of a row.

    Attributes:
        begin: index of the window's first token in the row; `end` is the index after its last
            token.
        own_begin: index of the first token that is labelled in this window; `own_end` is the index
            after the last such token.
    """

    begin: int
    end: int
    own_begin: int
    own_end: int


def windows(count: int, size: int, stride: int) -> Iterator[Window]:
    """Yield the windows of a row.

    Args:
        count: number of tokens in the row.
        size: maximum number of tokens in a window.
        stride: minimum number of tokens that neighbouring windows share.

    >>> list(windows(3, 4, 2))
    [Window(begin=0, end=3, own_begin=0, own_end=3)]
    >>> [(one.begin, one.end, one.own_begin, one.own_end) for one in windows(7, 4, 2)]
    [(0, 4, 0, 3), (2, 6, 3, 4), (3, 7, 4, 7)]
    """
    begins = [*range(0, count - size, size - stride), max(count - size, 0)]
    edges = [0, *((one + size + other) // 2 for one, other in pairwise(begins)), count]
    for begin, (own_begin, own_end) in zip(begins, pairwise(edges), strict=True):
        yield Window(begin, min(begin + size, count), own_begin, own_end)
