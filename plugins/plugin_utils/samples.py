# Apache-2.0 (see LICENSE)
"""Chooses the parts of a long file that are read instead of the whole file."""

from __future__ import annotations

WHOLE_BYTES = 8 << 20  # files up to this size are read completely
FIRST_BYTES, LAST_BYTES = 64 << 10, 256 << 10
# number of parts between the first part and the last; an event has about 30 bytes per rank
COUNT, PART_BYTES = 32, 32 << 10


def samples(size: int) -> list[tuple[int, int]]:
    """Return the start and size of each part to read, for a file larger than WHOLE_BYTES.

    >>> samples(1 << 40)[0], len(samples(1 << 40)), sum(count for _, count in samples(1 << 40))
    ((0, 65536), 34, 1376256)
    """
    step = (size - FIRST_BYTES - LAST_BYTES) // COUNT
    middle = [(FIRST_BYTES + number * step, PART_BYTES) for number in range(COUNT)]
    return [(0, FIRST_BYTES), *middle, (size - LAST_BYTES, LAST_BYTES)]
