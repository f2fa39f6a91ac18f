"""A rank of `bench.light_hosts` that computes nothing: light_rank.py HANGING STEP.

All ranks wait for each other once a second, as in an all-reduce. In the first start the rank
HANGING hangs before that STEP. Each prints when it begins: the number of the start, and the time.
"""

import os
import signal
import socket
import sys
import time

SIZE = 4096  # bytes that a rank sends and receives in a step
STEP_SECONDS = 1.0
LIMIT_SECONDS = 120.0


def receive(connection: socket.socket) -> None:
    left = SIZE
    while left:
        data = connection.recv(left)
        if not data:
            raise ConnectionResetError("another rank has ended")
        left -= len(data)


def connections(rank: int, ranks: int, address: tuple[str, int]) -> list[socket.socket]:
    """Open connections from rank 0 to all other ranks, and from each of them to rank 0."""
    if rank == 0:
        with socket.create_server(("", address[1]), backlog=ranks) as listener:
            return [listener.accept()[0] for _ in range(ranks - 1)]
    deadline = time.monotonic() + LIMIT_SECONDS
    while True:
        try:
            return [socket.create_connection(address)]
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def main() -> None:
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    restarts = int(os.environ.get("FTCLUSTER_RESTART", "0"))
    hanging, last = map(int, sys.argv[1:])
    print(f"start {restarts} {time.time()}", flush=True)
    others = connections(rank, ranks, (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
    print(f"together {restarts} {time.time()}", flush=True)
    step = 0
    while True:
        step += 1
        time.sleep(STEP_SECONDS)
        if (restarts, rank, step) == (0, hanging, last):
            print(f"hangs {restarts} {time.time()}", flush=True)
            signal.pause()
        for one in others:
            if rank:
                one.sendall(bytes(SIZE))
            receive(one)
        for one in others if rank == 0 else ():
            one.sendall(bytes(SIZE))


if __name__ == "__main__":
    main()
