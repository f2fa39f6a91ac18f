"""Signals and warnings in the process of a command."""

import contextlib
import logging
import signal
import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, TextIO

from ftcluster.text.printable import printable

# Python up to 3.12 releases the lock of `logging` after a fork with this Python function. A signal
# handler can interrupt the function before the lock is released.
AFTER_FORK = getattr(logging, "_releaseLock", None)
AGAIN_SECONDS = 0.02  # delay before an exception that Python dropped is raised again


@contextlib.contextmanager
def warnings_shown() -> Iterator[None]:
    """Print warnings of operations to stderr as plain lines."""
    log, handler = logging.getLogger("ftcluster"), _Warnings(sys.stderr)
    handler.setLevel(logging.WARNING)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


class _Warnings(logging.StreamHandler[TextIO]):
    """A logging handler that writes warnings without control characters."""

    def format(self, record: logging.LogRecord) -> str:
        return str(printable(super().format(record)))


@contextlib.contextmanager
def ended_in_order() -> Iterator[None]:
    """Make SIGHUP and SIGTERM end the process with an exception, so that it cleans up.

    Signals that are already ignored (nohup) stay ignored. Python drops an exception that a signal
    handler raises during a fork, a `__del__` or another callback. Such an exception, including
    Ctrl-C's KeyboardInterrupt, is raised again a moment later.
    """
    dropped: list[BaseException] = []

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    def hook(unraisable: Any) -> None:
        if isinstance(unraisable.exc_value, SystemExit | KeyboardInterrupt):
            dropped.append(type(unraisable.exc_value)(*unraisable.exc_value.args))
            if unraisable.object is AFTER_FORK:  # other threads would wait for the lock forever
                with contextlib.suppress(RuntimeError):  # the lock was already released
                    AFTER_FORK()
            # a timer needs no locks, unlike a new thread
            signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)
        else:
            hook_before(unraisable)

    def again(_number: int, _frame: FrameType | None) -> None:
        raise dropped[-1]

    handlers = {signal.SIGHUP: end, signal.SIGTERM: end, signal.SIGALRM: again}
    ours = {n: call for n, call in handlers.items() if signal.getsignal(n) == signal.SIG_DFL}
    with _held(ours):
        hook_before, sys.unraisablehook = sys.unraisablehook, hook
        for number, handler in ours.items():
            signal.signal(number, handler)
    try:
        yield
    finally:
        with _held(ours):
            signal.setitimer(signal.ITIMER_REAL, 0)
            sys.unraisablehook = hook_before
            for number in ours:
                signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def _held(numbers: Iterable[signal.Signals]) -> Iterator[None]:
    """Block signals in the context: Python drops a signal while its handler is replaced."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
