"""Formats counts with their nouns."""


def counted(count: int, noun: str) -> str:
    """Format a count with its noun.

    >>> counted(1, "host"), counted(2, "host")
    ('1 host', '2 hosts')
    """
    return f"{count} {noun}{'s' * (count != 1)}"
