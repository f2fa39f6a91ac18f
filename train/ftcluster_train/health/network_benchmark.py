"""Latency and bandwidth between this rank and all others, over the process group of training.

All pairs are measured in rounds; in a round each rank is in one pair at most. torch is imported
only for the measurement.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

PAIR_SECONDS = 0.3  # duration of the test of a pair, if ALL_SECONDS allow it
ALL_SECONDS = 6.0  # duration of all rounds
# Messages grow from the first size to the largest while time is left. 8 MiB takes 7 ms on a link of
# 10 Gbit/s, and 0.7 s on a link of 100 Mbit/s, which a smaller message measures equally well.
FIRST_BYTES, LARGEST_BYTES, GROWTH = 256 << 10, 8 << 20, 4
LARGEST_REPEATS = 8
ROUND_TRIPS = (5, 50)  # minimum and maximum number of round trips of a byte


@dataclass(frozen=True)
class Link:
    """A measurement of the connection between two ranks.

    Attributes:
        ranks: the two ranks, the lower one first.
        latency_us: half of the shortest round trip of a byte, in microseconds; unlike a mean, the
            shortest does not depend on other load of the hosts.
        mb_per_second: rate of the slower direction, in 1e6 bytes per second.
    """

    ranks: tuple[int, int]
    latency_us: float
    mb_per_second: float


def rounds(size: int) -> list[list[tuple[int, int]]]:
    """Return every pair of `size` ranks once, in rounds with each rank in one pair at most.

    This is the circle method: the first rank stays, and the others move by one seat each round.
    With an odd number of ranks, one rank per round has no partner.

    >>> rounds(4)
    [[(0, 3), (1, 2)], [(0, 2), (1, 3)], [(0, 1), (2, 3)]]
    """
    seats: list[int | None] = [*range(size), *([None] if size % 2 else [])]
    paired = []
    for _ in range(len(seats) - 1):
        facing = zip(seats[: len(seats) // 2], reversed(seats), strict=False)
        pairs = [(a, b) for a, b in facing if a is not None and b is not None]
        paired.append(sorted((min(pair), max(pair)) for pair in pairs))
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return [pairs for pairs in paired if pairs]


def partners(rank: int, size: int) -> list[int]:
    """Return a rank's partner in each round.

    >>> partners(1, 3)
    [2, 0]
    """
    return [sum(pair) - rank for pairs in rounds(size) for pair in pairs if rank in pair]


def seconds_per_pair(size: int) -> float:
    """Return the seconds to measure a pair, so that all rounds take ALL_SECONDS at most.

    >>> seconds_per_pair(4), round(seconds_per_pair(61), 3)
    (0.3, 0.098)
    """
    return min(PAIR_SECONDS, ALL_SECONDS / max(1, len(rounds(size))))


def next_size(size: int, repeats: int, speed: float, seconds_left: float) -> int:
    """Return the size of the next message in bytes, or 0 to stop.

    Args:
        speed: rate in bytes per second.
    """
    larger = min(size * GROWTH, LARGEST_BYTES)
    if larger > size and larger / speed <= seconds_left:
        return larger
    return size if repeats < LARGEST_REPEATS and size / speed <= seconds_left else 0


def measure_links(place: int, ranks: Sequence[int]) -> list[Link]:
    """Measure the links from this rank to the others in `ranks`; each of them must call this.

    Args:
        place: index of this rank in `ranks`.

    Returns:
        The links to ranks with higher numbers.
    """
    seconds = seconds_per_pair(len(ranks))
    rank, links = ranks[place], []
    for other in partners(place, len(ranks)):
        peer = ranks[other]
        lower = rank < peer
        latency = _latency(peer, lower, seconds / 4)
        there = _send(peer, seconds / 3) if lower else _receive(peer)
        back = _receive(peer) if lower else _send(peer, seconds / 3)
        if lower:
            speed = round(min(there, back) / 1e6, 2)
            links.append(Link((rank, peer), round(latency * 1e6, 1), speed))
    return links


def _latency(peer: int, lower: bool, seconds: float) -> float:
    """Return the seconds that a byte takes in one direction."""
    import torch
    import torch.distributed as dist

    byte = torch.zeros(1, dtype=torch.uint8)

    def round_trip() -> float:
        began = time.perf_counter()
        if lower:
            dist.send(byte, peer)
            dist.recv(byte, peer)
        else:
            dist.recv(byte, peer)
            dist.send(byte, peer)
        return time.perf_counter() - began

    round_trip()  # the peer may still be measuring with another rank
    first = round_trip()
    count = torch.tensor([min(max(int(seconds / first), ROUND_TRIPS[0]), ROUND_TRIPS[1])])
    if lower:
        dist.send(count, peer)
    else:
        dist.recv(count, peer)
    return min(round_trip() for _ in range(int(count))) / 2


def _send(peer: int, seconds: float) -> float:
    """Send messages for about `seconds`; return the bytes per second of the largest messages."""
    import torch
    import torch.distributed as dist

    data, done = torch.zeros(LARGEST_BYTES, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8)
    deadline = time.perf_counter() + seconds
    size, speeds = FIRST_BYTES, list[float]()
    while size:
        began = time.perf_counter()
        dist.send(torch.tensor([size]), peer)
        dist.send(data[:size], peer)
        dist.recv(done, peer)
        now = time.perf_counter()
        speeds.append(size / (now - began))
        following = next_size(size, len(speeds), median(speeds), deadline - now)
        if following > size:
            speeds = []
        size = following
    speed = torch.tensor([median(speeds)], dtype=torch.float64)
    dist.send(torch.tensor([0]), peer)
    dist.send(speed, peer)
    return float(speed)


def _receive(peer: int) -> float:
    """Receive the messages of `_send`; return the rate that the sender measured."""
    import torch
    import torch.distributed as dist

    data, done = torch.zeros(LARGEST_BYTES, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8)
    size, speed = torch.tensor([0]), torch.zeros(1, dtype=torch.float64)
    while True:
        dist.recv(size, peer)
        if not int(size):
            break
        dist.recv(data[: int(size)], peer)
        dist.send(done, peer)
    dist.recv(speed, peer)
    return float(speed)
