"""Signals: Ctrl-C and requests to end, as a counter that can be polled or as an exception."""

import contextlib
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
        self._counts = False
        self._before: dict[signal.Signals, Any] = {}

    @property
    def count(self) -> int:
        """How many have come."""
        self._seen = self._seen or self._count > 0
        return self._count

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is not threading.main_thread():
            return self  # Python gives signals to the main thread alone
        before = {number: signal.getsignal(number) for number in NUMBERS}
        if before[signal.SIGHUP] == signal.SIG_IGN:
            del before[signal.SIGHUP]  # nohup: the end of the terminal is to mean nothing
        self._before = before
        try:
            for number in before:
                signal.signal(number, self._receive)
            self._counts = True
        except BaseException:  # of a handler before, for a signal that came in between
            self._put_back()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if not self._before:
            return
        self._put_back()
        if self.first and not self._seen:
            signal.raise_signal(signal.Signals(self.first))

    def _put_back(self) -> None:
        # blocking them meanwhile would not do: any other thread may receive one, and the main
        # thread then runs its handler, which may raise between two exchanges
        self._counts = False
        with contextlib.ExitStack() as exchanges:
            for number, handler in self._before.items():
                exchanges.callback(signal.signal, number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._counts:
            self._count += 1
            self.first = self.first or number
            return
        handler = self._before[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)
        elif handler != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
