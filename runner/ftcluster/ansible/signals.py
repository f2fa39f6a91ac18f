"""Signals: Ctrl-C and requests to end, as a counter that can be polled or as an exception."""

import contextlib
import signal
import threading
from types import FrameType
from typing import Any

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """A counter of SIGINT, SIGTERM and SIGHUP within its context, in the main thread.

    A signal that arrives after the last read of `count` is passed to the previous handler at the
    end of the context, because nobody else would notice it.

    Attributes:
        first: number of the first signal; 0 before any signal.

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
        """Return the number of signals so far."""
        self._seen = self._seen or self._count > 0
        return self._count

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is not threading.main_thread():
            return self  # Python delivers signals only to the main thread
        before = {number: signal.getsignal(number) for number in NUMBERS}
        if before[signal.SIGHUP] == signal.SIG_IGN:
            del before[signal.SIGHUP]  # nohup: ignore the end of the terminal
        self._before = before
        try:
            for number in before:
                signal.signal(number, self._receive)
            self._counts = True
        except BaseException:  # raised by a previous handler for a signal in between
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
        # blocking the signals meanwhile would not help: any other thread may receive one, and the
        # main thread then runs its handler, which may raise between two exchanges
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
