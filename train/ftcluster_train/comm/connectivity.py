"""Checks which hosts can connect to each other by TCP, before a collective waits for them.

gloo connects every rank with every other rank. A firewall between two hosts makes all ranks wait
for minutes, and no message names the hosts.

    python -m ftcluster_train.comm.connectivity ADDRESS PORT    try to connect to the head
    python -m ftcluster_train.comm.connectivity --pairs ADDRESS    see `answer_pairs`
"""

import json
import signal
import socket
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

CONNECT_SECONDS = 3.0
WAIT_SECONDS = 60.0  # other ranks may still be importing torch from a cold disk
PARALLEL = 32
# starts of the two lines that `--pairs` prints: a login script may print other lines
PORT_MARK, ERRORS_MARK = "ftcluster-port ", "ftcluster-unreached "
PAIRS_SECONDS = 60  # `--pairs` ends after this time, even if its stdin stays open
BACKLOG = 4096  # large, because strangers may connect too; net.core.somaxconn limits it


def check_connections(store: Any, rank: int, addresses: Sequence[str]) -> list[list[int]]:
    """Return for each rank the ranks that it cannot connect to; every rank gets the same result.

    Each rank listens at a port that the kernel chooses, as gloo does, and connects to all other
    ranks.
    """
    everyone = range(len(addresses))
    with listen(addresses[rank], 0, len(addresses)) as listener:
        store.set(f"port/{rank}", str(listener.getsockname()[1]))
        ports = {other: int(port) for other, port in _read_all(store, "port", everyone).items()}
        others = [other for other in ports if other != rank]
        with ThreadPoolExecutor(max_workers=PARALLEL) as pool:
            errors = pool.map(
                lambda other: connection_error(addresses[other], ports[other]), others
            )
            reached = {other for other, error in zip(others, errors, strict=True) if not error}
        unreached = [other for other in everyone if other != rank and other not in reached]
        store.set(f"unreached/{rank}", json.dumps(unreached))
        answers = _read_all(store, "unreached", everyone)
    return [
        json.loads(answers[each])
        if each in answers
        else [other for other in everyone if other != each]
        for each in everyone
    ]


def connected_ranks(unreached: Sequence[Sequence[int]]) -> list[int]:
    """Return ranks, including rank 0, that all reach each other.

    The ranks with the most failed connections are dropped first.

    >>> connected_ranks([[], [2], [1], []])
    [0, 1, 3]
    """
    gaps = unconnected_pairs(unreached)
    ranks = list(range(len(unreached)))
    while gaps:
        counts = {rank: sum(rank in gap for gap in gaps) for rank in ranks if rank != 0}
        worst = max(counts, key=lambda rank: (counts[rank], rank))
        ranks.remove(worst)
        gaps = {gap for gap in gaps if worst not in gap}
    return ranks


def unconnected_pairs(unreached: Sequence[Sequence[int]]) -> set[tuple[int, int]]:
    """Return the pairs of ranks with a failed connection in any direction, lower rank first."""
    return {
        (min(rank, other), max(rank, other))
        for rank, others in enumerate(unreached)
        for other in others
    }


def connection_error(address: str, port: int) -> str:
    """Return why a TCP connection fails, or "" if it succeeds."""
    try:
        with socket.create_connection((address, port), timeout=CONNECT_SECONDS):
            return ""
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__


def listen(address: str, port: int, callers: int) -> socket.socket:
    """Listen at `address`, or at all addresses if the host does not have that address (NAT).

    The kernel completes connections, so nothing needs to accept them.
    """
    try:
        info = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(info[4][:2], family=info[0], backlog=max(callers + 1, BACKLOG))
    except OSError:
        return socket.create_server(("", port), backlog=max(callers + 1, BACKLOG))


def _read_all(store: Any, key: str, ranks: Sequence[int]) -> dict[int, str]:
    """Return the values that ranks stored in time, by rank; each rank stores under its own key."""
    keys = [f"{key}/{rank}" for rank in ranks]
    try:
        store.wait(keys, timedelta(seconds=WAIT_SECONDS))
        present = list(ranks)
    except RuntimeError:  # the base class of torch's DistStoreError
        present = [rank for rank in ranks if store.check([keys[rank]])]
    return {rank: store.get(keys[rank]).decode() for rank in present}


def answer_pairs(address: str) -> None:
    """Listen at this host's address, and try to connect to the hosts that stdin names.

    Prints the port. Reads a line with a JSON object that maps each host's name to [address, port].
    Tries to connect to all these hosts, and prints a JSON object with the error for each host that
    cannot be reached. Listens until stdin ends, because other hosts may still be trying to connect.
    """
    signal.alarm(PAIRS_SECONDS)
    with listen(address, 0, BACKLOG) as listener:
        print(f"{PORT_MARK}{listener.getsockname()[1]}", flush=True)
        peers = json.loads(sys.stdin.readline() or "{}")
        with ThreadPoolExecutor(max_workers=max(1, len(peers))) as pool:
            errors = pool.map(lambda peer: connection_error(*peer), peers.values())
            failures = {name: error for name, error in zip(peers, errors, strict=True) if error}
        print(f"{ERRORS_MARK}{json.dumps(failures)}", flush=True)
        sys.stdin.read()


def main() -> int:
    """Try to connect; return the exit code."""
    if sys.argv[1] == "--pairs":
        answer_pairs(sys.argv[2])
        return 0
    address, port = sys.argv[1], int(sys.argv[2])
    error = connection_error(address, port)
    if error:
        print(f"cannot connect to the head at {address}, port {port}: {error}", file=sys.stderr)
    return 1 if error else 0


if __name__ == "__main__":
    sys.exit(main())
