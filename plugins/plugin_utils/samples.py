# Apache-2.0 (see LICENSE)
"""Which parts of a long file are read in place of all of it."""

from __future__ import annotations

WHOLE_BYTES = 8 << 20  # of a file that is read whole
FIRST_BYTES, LAST_BYTES = 64 << 10, 256 << 10
COUNT, PART_BYTES = 32, 32 << 10  # between these, evenly; an event has some 30 bytes a rank


def samples(size: int) -> list[tuple[int, int]]:
    """Where each part of a file of more than WHOLE_BYTES begins, and its bytes.

    >>> samples(1 << 40)[0], len(samples(1 << 40)), sum(count for _, count in samples(1 << 40))
    ((0, 65536), 34, 1376256)
    """
    step = (size - FIRST_BYTES - LAST_BYTES) // COUNT
    middle = [(FIRST_BYTES + number * step, PART_BYTES) for number in range(COUNT)]
    return [(0, FIRST_BYTES), *middle, (size - LAST_BYTES, LAST_BYTES)]
