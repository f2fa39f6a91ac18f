"""Counts Ctrl-C and termination signals, so that a loop can poll the count."""

import contextlib
import signal
import threading
from types import FrameType
from typing import Any

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """A context that counts SIGINT, SIGTERM and SIGHUP; it works only in the main thread.

    If `count` was not read after a signal, the end of the context passes the signal to the previous
    handler. Otherwise the signal would be lost.

    Attributes:
        first: the first signal as a number, such as 2 for SIGINT; 0 before any signal.

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
        except BaseException:  # the previous handler raised it for a signal that arrived meanwhile
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
        # Blocking the signals would not help: another thread may receive a signal, and its handler
        # still runs in the main thread. The handler may raise between two of these exchanges.
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
