"""Formats sizes of disk space for messages. Standard library only."""

UNITS = ((1e9, 1, "GB"), (1e6, 0, "MB"), (1, 0, "bytes"))


def free_and_needed(free: float, needed: float) -> tuple[str, str]:
    """Format two sizes in bytes in the largest unit in which the texts differ.

    >>> free_and_needed(1_000_000_000, 5_000_000_000)
    ('1.0 GB', '5.0 GB')
    >>> free_and_needed(99_600_000, 100_000_000)
    ('99,600,000 bytes', '100,000,000 bytes')
    """
    texts = ("", "")
    for factor, digits, unit in UNITS:
        if texts[0] == texts[1]:
            texts = (f"{free / factor:,.{digits}f} {unit}", f"{needed / factor:,.{digits}f} {unit}")
    return texts
