# Apache-2.0 (see LICENSE)
"""Formats sizes of disk space for messages.

The collection cannot import ftcluster_common, whose module `sizes` contains the same function for
the other packages. A test compares the two functions.
"""

UNITS = ((1e9, 1, "GB"), (1e6, 0, "MB"), (1, 0, "bytes"))


def free_and_needed(free: int, needed: int) -> tuple[str, str]:
    """Format two sizes in the largest unit in which the texts differ.

    >>> free_and_needed(1_000_000_000, 5_000_000_000)
    ('1.0 GB', '5.0 GB')
    >>> free_and_needed(97_300_000, 100_000_000)
    ('97 MB', '100 MB')
    """
    for factor, digits, unit in UNITS:
        sizes = tuple(f"{size / factor:,.{digits}f} {unit}" for size in (free, needed))
        if sizes[0] != sizes[1]:
            break
    return sizes[0], sizes[1]
