"""Lists of CPUs in taskset's notation: 0-15,32 or 0-38:2."""

from collections.abc import Iterable

MOST = 1 << 16  # largest CPU number; kernels support at most 8192


def parse_cpus(text: str) -> tuple[int, ...]:
    """Return the CPU numbers in a list in the notation of the kernel or taskset, in list order.

    >>> parse_cpus("0-3,8,10-14:2")
    (0, 1, 2, 3, 8, 10, 12, 14)

    Raises:
        ValueError: the text is not such a list, or a CPU number or the number of CPUs is larger
            than any kernel allows.
    """
    numbers: list[int] = []
    for part in text.split(","):
        if part:
            span, _, step = part.partition(":")
            first, _, last = span.partition("-")
            if int(last or first) > MOST:
                raise ValueError(f"CPU number {last or first} is too large")
            numbers += range(int(first), int(last or first) + 1, int(step or 1))
            if len(numbers) > MOST:
                raise ValueError(f"it lists more than {MOST} CPUs")
    return tuple(numbers)


def format_cpus(cpus: Iterable[int]) -> str:
    """Return CPU numbers in taskset's notation, with strides for CPUs numbered across sockets.

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
            count = 1  # two CPUs are written separately, not as a stride
        last = numbers[count - 1]
        stride = f":{step}" if step > 1 and count > 1 else ""
        parts.append(f"{first}-{last}{stride}" if count > 1 else str(first))
        numbers = numbers[count:]
    return ",".join(parts)
