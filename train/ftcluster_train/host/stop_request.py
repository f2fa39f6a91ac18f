"""SIGTERM and SIGINT to the supervisor: a training saves its state first, a script just ends.

Standard library only.
"""

import signal
import time
from types import FrameType

from ftcluster_common.launch import GRACE_SECONDS
from ftcluster_train.host.heartbeats import Heartbeats

EXIT_CODE = 128 + signal.SIGTERM  # of a run that was stopped


class Stopped(Exception):
    """The run has to end at once."""


class StopRequest:
    """Takes the signals from now on; the second one ends the run at once, unless `repeated`.

    Attributes:
        asked: whether there was one.
        saving: the ranks that save before they end; None: the first signal ends the run as well.
        grace_seconds: see Launch.
        repeated: whether further signals are the same request, and only the grace time ends it.
        holding: whether a signal only sets `asked`: the run has not begun, or is being ended.
    """

    def __init__(self) -> None:
        self.asked = False
        self.saving: Heartbeats | None = None
        self.grace_seconds = GRACE_SECONDS
        self.repeated = False
        self.holding = True
        self._deadline = float("inf")
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._take)

    def check(self) -> None:
        """Call while the ranks are at work, and before they are started.

        Raises:
            Stopped: the grace time is over, or there are no ranks to wait for.
        """
        if self.asked and (self.saving is None or time.monotonic() > self._deadline):
            raise Stopped

    def _take(self, _number: int, _frame: FrameType | None) -> None:
        again, self.asked = self.asked, True
        if self.holding:
            return
        # before the first step there is nothing to save
        if not self.saving or not all(life.step for life in self.saving.lives):
            raise Stopped
        if again and not self.repeated:
            raise Stopped
        if again:
            return
        self._deadline = time.monotonic() + self.grace_seconds
        self.saving.send(b"stop\n")
