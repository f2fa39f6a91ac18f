"""SIGTERM to any rank: all ranks agree on a step, save their state there, and end."""

import signal
from collections.abc import Callable


class TrainingStopped(Exception):
    """Every rank has ended its training after the same step, and its state is saved."""


def listen() -> Callable[[], bool]:
    """Take SIGTERM and SIGINT as the request to stop; returns whether one has come."""
    received: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: received.append(number))
    return lambda: bool(received)
