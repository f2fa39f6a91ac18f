"""Which hosts reach which by TCP, found out before a collective would wait for those that do not.

gloo connects every rank with every other one. A firewall between two hosts makes all of them wait
for minutes, and none of them says for whom.

    python -m ftcluster_train.distributed.connectivity ADDRESS PORT    connect to a listener
"""

import contextlib
import json
import socket
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

CONNECT_SECONDS = 3.0
WAIT_SECONDS = 60.0  # the others may still be loading torch from a cold disk
AT_ONCE = 32


def meet(store: Any, rank: int, addresses: Sequence[str]) -> list[list[int]]:
    """For each rank those that it does not reach; the same answer on every rank.

    Each listens at a port that the kernel chooses, as gloo does, and connects to all others.

    Args:
        store: a torch.distributed store that all ranks have.
        rank: this one.
        addresses: of all ranks.
    """
    everyone = range(len(addresses))
    with listen(addresses[rank], 0, len(addresses)) as listener:
        store.set(f"port/{rank}", str(listener.getsockname()[1]))
        ports = {other: int(port) for other, port in _told(store, "port", len(addresses)).items()}
        others = [other for other in ports if other != rank]
        pool = ThreadPoolExecutor(max_workers=AT_ONCE)
        reached = pool.map(lambda other: connects(addresses[other], ports[other]), others)
        found = dict(zip(others, reached, strict=True))
        missing = [other for other in everyone if other != rank and not found.get(other)]
        store.set(f"unreached/{rank}", json.dumps(missing))
        told = _told(store, "unreached", len(addresses))
    return [
        json.loads(told[other]) if other in told else [one for one in everyone if one != other]
        for other in everyone
    ]


def together(unreached: Sequence[Sequence[int]]) -> list[int]:
    """Ranks that all reach each other, rank 0 among them: those with most gaps are left out.

    >>> together([[], [2], [1], []])
    [0, 1, 3]
    """
    gaps = pairs_apart(unreached)
    members = list(range(len(unreached)))
    while gaps:
        counts = {one: sum(one in gap for gap in gaps) for one in members if one != 0}
        worst = max(counts, key=lambda one: (counts[one], one))
        members.remove(worst)
        gaps = {gap for gap in gaps if worst not in gap}
    return members


def pairs_apart(unreached: Sequence[Sequence[int]]) -> set[tuple[int, int]]:
    """Pairs of which one does not reach the other, lower rank first."""
    return {
        (min(one, other), max(one, other))
        for one, others in enumerate(unreached)
        for other in others
    }


@contextlib.contextmanager
def receive_calls(address: str, port: int, callers: int) -> Iterator[tuple[str, int]]:
    """Listen for as long as this lasts; gives the address and the port to call."""
    with listen(address, port, callers):
        yield address, port


def connects(address: str, port: int) -> bool:
    """Whether a TCP connection comes about."""
    return not refusal(address, port)


def refusal(address: str, port: int) -> str:
    """Why no TCP connection comes about, or "" where one does."""
    try:
        with socket.create_connection((address, port), timeout=CONNECT_SECONDS):
            return ""
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__


def listen(address: str, port: int, callers: int) -> socket.socket:
    """A listener at this host's address, or at all of them where it is another's (NAT)."""
    place = (address, port)
    try:
        found = socket.getaddrinfo(*place, type=socket.SOCK_STREAM)[0]
        # the kernel answers for it, so nobody has to accept
        return socket.create_server(found[4][:2], family=found[0], backlog=callers + 1)
    except OSError:
        return socket.create_server(("", port), backlog=callers + 1)


def _told(store: Any, key: str, size: int) -> dict[int, str]:
    """What each rank has said under a key, without those that say nothing for long."""
    keys = [f"{key}/{rank}" for rank in range(size)]
    try:
        store.wait(keys, timedelta(seconds=WAIT_SECONDS))
        there = list(range(size))
    except RuntimeError:  # torch's DistStoreError among them
        there = [rank for rank in range(size) if store.check([keys[rank]])]
    return {rank: store.get(keys[rank]).decode() for rank in there}


def main() -> int:
    """Entry point; returns the exit code."""
    address, port = sys.argv[1], int(sys.argv[2])
    reason = refusal(address, port)
    if reason:
        print(f"no TCP connection to the head at {address}, port {port}: {reason}", file=sys.stderr)
    return 1 if reason else 0


if __name__ == "__main__":
    sys.exit(main())
