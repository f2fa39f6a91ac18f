# Apache-2.0 (see LICENSE)
"""Lists of numbers (CPUs, NUMA nodes, ports) in the kernel's format."""

from __future__ import annotations

from collections.abc import Iterable


def number_list(text: str) -> set[int]:
    """Return the numbers of a list.

    >>> sorted(number_list("0-3,8"))
    [0, 1, 2, 3, 8]
    """
    numbers: set[int] = set()
    for part in text.strip().split(","):
        first, dash, last = part.partition("-")
        if first.isdigit():
            numbers.update(range(int(first), int(last if dash else first) + 1))
    return numbers


def ranges(numbers: Iterable[int]) -> list[str]:
    """Return the ranges of numbers, the inverse of number_list.

    >>> ranges({8, 0, 1, 2, 3})
    ['0-3', '8']
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return [f"{first}-{last}" if last > first else str(first) for first, last in runs]
