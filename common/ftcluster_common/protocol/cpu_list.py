"""Lists of CPUs as taskset writes them: 0-15,32 or 0-38:2."""

from collections.abc import Iterable

MOST = 1 << 16  # the largest number of a CPU; kernels are built for at most 8192


def parse_cpus(text: str) -> tuple[int, ...]:
    """The CPU numbers of a list as the kernel or taskset writes it, in its order.

    >>> parse_cpus("0-3,8,10-14:2")
    (0, 1, 2, 3, 8, 10, 12, 14)

    Raises:
        ValueError: it is none, or has a number, or as many numbers, as no kernel has.
    """
    numbers: list[int] = []
    for part in text.split(","):
        if part:
            span, _, step = part.partition(":")
            first, _, last = span.partition("-")
            if int(last or first) > MOST:
                raise ValueError(f"no CPU is number {last or first}")
            numbers += range(int(first), int(last or first) + 1, int(step or 1))
            if len(numbers) > MOST:
                raise ValueError(f"it has more than {MOST} CPUs")
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
