"""Numbers and names in a row, written short: 0-15,32 and node1-node7."""

import re
from collections.abc import Iterable, Sequence


def parse_cpus(text: str) -> tuple[int, ...]:
    """The CPU numbers of a list as the kernel or taskset writes it, in its order.

    >>> parse_cpus("0-3,8,10-14:2")
    (0, 1, 2, 3, 8, 10, 12, 14)
    """
    numbers: list[int] = []
    for part in text.split(","):
        if part:
            span, _, step = part.partition(":")
            first, _, last = span.partition("-")
            numbers += range(int(first), int(last or first) + 1, int(step or 1))
    return tuple(numbers)


def format_cpus(cpus: Iterable[int]) -> str:
    """The inverse, as taskset takes it; a stride as some firmware numbers sockets by turns.

    >>> format_cpus([0, 1, 2, 3, 8]), format_cpus(range(0, 40, 2)), format_cpus([1, 4])
    ('0-3,8', '0-38:2', '1,4')
    """
    numbers, parts = sorted(cpus), []
    while numbers:
        first = numbers[0]
        step = numbers[1] - first if len(numbers) > 1 else 1
        count = 1
        while count < len(numbers) and numbers[count] == first + step * count:
            count += 1
        if count < 3 and step > 1:
            count = 1  # two numbers make no stride
        last = numbers[count - 1]
        stride = f":{step}" if step > 1 and count > 1 else ""
        parts.append(f"{first}-{last}{stride}" if count > 1 else str(first))
        numbers = numbers[count:]
    return ",".join(parts)


def short_names(names: Sequence[str]) -> str:
    """Names of hosts, those that are numbered in a row as their first and last.

    >>> short_names(["head", "node1", "node2", "node3", "node7"])
    'head, node1-node3, node7'
    >>> short_names(["n01.example.com", "n02.example.com"])
    'n01.example.com-n02.example.com'
    """
    runs: list[list[str]] = []
    where = -1  # of the number that counts up in the last run
    for name in names:
        place = _follows(runs[-1][-1], name) if runs else -1
        if place >= 0 and (len(runs[-1]) == 1 or place == where):
            runs[-1].append(name)
            where = place
        else:
            runs.append([name])
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _follows(name: str, following: str) -> int:
    """Where in `name` the number is that is one more in `following`; -1 where none is."""
    for match in re.finditer(r"\d+", name):
        number = str(int(match[0]) + 1).zfill(len(match[0]))
        if name[: match.start()] + number + name[match.end() :] == following:
            return match.start()
    return -1
