"""Signals: Ctrl-C and requests to end, as a counter that can be polled or as an exception."""

import signal
import threading
from types import FrameType
from typing import Any


class Interrupts:
    """Counts SIGINT, SIGTERM and SIGHUP while it is entered, in the main thread.

    Attributes:
        count: how many have come.
        first: the number of the first one; 0 before.

    Example:
        with Interrupts() as interrupts:
            while not interrupts.count:
                work()
    """

    def __init__(self) -> None:
        self.count = 0
        self.first = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is not threading.main_thread():
            return self  # Python gives signals to the main thread alone
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # nohup: the end of the terminal is to mean nothing
            self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        self.count += 1
        self.first = self.first or number
