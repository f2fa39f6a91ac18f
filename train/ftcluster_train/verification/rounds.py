"""Who meets whom when all pairs are measured, and for how long. Pure functions only."""

SLOT_SECONDS = 0.3  # for a pair, where there is time
ALL_SECONDS = 6.0  # for all rounds together
# Messages grow from the first size to the largest while there is time: 8 MiB takes 7 ms on a link
# of 10 Gbit/s and 0.7 s on one of 100 Mbit/s, where a smaller one tells as much.
FIRST_BYTES, LARGEST_BYTES, GROWTH = 256 << 10, 8 << 20, 4
LARGEST_TURNS = 8


def rounds(size: int) -> list[list[tuple[int, int]]]:
    """Every pair of `size` players once, in rounds in which each player is in one pair at most.

    The circle method: the first player stays, the others move on by one seat a round. With an odd
    number one player a round has no partner.

    >>> rounds(4)
    [[(0, 3), (1, 2)], [(0, 2), (1, 3)], [(0, 1), (2, 3)]]
    """
    seats: list[int | None] = [*range(size), *([None] if size % 2 else [])]
    found = []
    for _ in range(len(seats) - 1):
        facing = zip(seats[: len(seats) // 2], reversed(seats), strict=False)
        pairs = [(a, b) for a, b in facing if a is not None and b is not None]
        found.append(sorted((min(pair), max(pair)) for pair in pairs))
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return [pairs for pairs in found if pairs]


def partners(me: int, size: int) -> list[int]:
    """Whom one player meets, round by round.

    >>> partners(1, 3)
    [2, 0]
    """
    return [
        pair[0] if pair[1] == me else pair[1]
        for pairs in rounds(size)
        for pair in pairs
        if me in pair
    ]


def slot_seconds(size: int) -> float:
    """How long one pair of `size` players may measure, so that all rounds take seconds.

    >>> slot_seconds(4), slot_seconds(61)
    (0.3, 0.1)
    """
    return min(SLOT_SECONDS, ALL_SECONDS / max(1, len(rounds(size))))


def next_size(size: int, turns: int, speed: float, left: float) -> int:
    """The size of the next message in bytes, or 0 where there shall be none.

    Args:
        size: of the message before.
        turns: how many of this size there were.
        speed: bytes a second.
        left: seconds until the end.
    """
    larger = min(size * GROWTH, LARGEST_BYTES)
    if larger > size and larger / speed <= left:
        return larger
    return size if turns < LARGEST_TURNS and size / speed <= left else 0
