"""Ctrl-C as a counter that can be polled, instead of an exception."""

import signal
from types import FrameType
from typing import Any


class Interrupts:
    """Counts SIGINT and SIGTERM while it is entered.

    Example:
        with Interrupts() as interrupts:
            while not interrupts.count:
                work()
    """

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
