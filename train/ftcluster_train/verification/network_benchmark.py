"""Latency and bandwidth between this rank and all others, over what training communicates by."""

import time
from dataclasses import dataclass
from statistics import median

import torch
import torch.distributed as dist

from ftcluster_train.verification.rounds import (
    FIRST_BYTES,
    LARGEST_BYTES,
    next_size,
    partners,
    slot_seconds,
)

TURNS = (5, 50)  # of a small message there and back, as many as there is time for


@dataclass(frozen=True)
class Link:
    """What was measured between two ranks.

    Attributes:
        ranks: the two, the lower one first.
        latency_us: half of the time of a byte there and back, the least of some turns, so that it
            tells of the way between the hosts and not of what else their cores do.
        mb_per_second: of the slower direction, 1e6 bytes a second.
    """

    ranks: tuple[int, int]
    latency_us: float
    mb_per_second: float


def measure_links(rank: int, size: int) -> list[Link]:
    """Measure with every other rank in turn; returns the links that this rank is the lower one of.

    All ranks have to call it. The process group's own send and receive are measured.
    """
    seconds = slot_seconds(size)
    found = []
    for peer in partners(rank, size):
        lower = rank < peer
        latency = _latency(peer, lower, seconds / 4)
        there = _send(peer, seconds / 3) if lower else _receive(peer)
        back = _receive(peer) if lower else _send(peer, seconds / 3)
        if lower:
            link = Link((rank, peer), round(latency * 1e6, 1), round(min(there, back) / 1e6, 2))
            found.append(link)
    return found


def _latency(peer: int, lower: bool, seconds: float) -> float:
    """Seconds that a byte takes."""
    byte = torch.zeros(1, dtype=torch.uint8)

    def turn() -> float:
        began = time.perf_counter()
        if lower:
            dist.send(byte, peer)
            dist.recv(byte, peer)
        else:
            dist.recv(byte, peer)
            dist.send(byte, peer)
        return time.perf_counter() - began

    turn()  # the peer may still be with another one
    first = turn()
    turns = torch.tensor([min(max(int(seconds / first), TURNS[0]), TURNS[1])])
    if lower:
        dist.send(turns, peer)
    else:
        dist.recv(turns, peer)
    return min(turn() for _ in range(int(turns))) / 2


def _send(peer: int, seconds: float) -> float:
    """Send messages for about so long; bytes a second of the largest ones."""
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
    """The other side of `_send`, with the same result."""
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
