"""Signals: Ctrl-C and requests to end, as a counter that can be polled or as an exception."""

import signal
import threading
from types import FrameType
from typing import Any

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Counts SIGINT, SIGTERM and SIGHUP while it is entered, in the main thread.

    One that came after the last look at `count` goes to the handler before, when it is left: nobody
    else would see it.

    Attributes:
        first: the number of the first one; 0 before.

    Example:
        with Interrupts() as interrupts:
            while not interrupts.count:
                work()
    """

    def __init__(self) -> None:
        self.first = 0
        self._count = 0
        self._seen = False
        self._before: dict[int, Any] = {}

    @property
    def count(self) -> int:
        """How many have come."""
        self._seen = self._seen or self._count > 0
        return self._count

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is not threading.main_thread():
            return self  # Python gives signals to the main thread alone
        held = signal.pthread_sigmask(signal.SIG_BLOCK, NUMBERS)  # for one that comes in between
        for number in NUMBERS:
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # nohup: the end of the terminal is to mean nothing
            self._before[number] = signal.signal(number, self._receive)
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        return self

    def __exit__(self, *_: object) -> None:
        if not self._before:
            return
        held = signal.pthread_sigmask(signal.SIG_BLOCK, NUMBERS)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        if self.first and not self._seen:
            signal.raise_signal(signal.Signals(self.first))

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        self._count += 1
        self.first = self.first or number
