"""The process of a command: signals that end it, and warnings."""

import contextlib
import logging
import signal
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def warnings_shown() -> Iterator[None]:
    """Show what the operations warn of on stderr, as plain lines."""
    log, handler = logging.getLogger("ftcluster"), logging.lastResort
    if handler:
        log.addHandler(handler)
    try:
        yield
    finally:
        if handler:
            log.removeHandler(handler)


@contextlib.contextmanager
def ended_in_order() -> Iterator[None]:
    """SIGHUP and SIGTERM end the process as an exception does, so that it cleans up.

    What the process was told to ignore (nohup) it goes on ignoring.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    ends = (signal.SIGHUP, signal.SIGTERM)
    changed = [number for number in ends if signal.getsignal(number) == signal.SIG_DFL]
    for number in changed:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)
