# Apache-2.0 (see LICENSE)
"""Lines about the progress of a task that takes minutes.

An action plugin prints them through Ansible's Display, so they appear in the output of
ansible-playbook. The command line of ftcluster reads them from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable

MARK = "progress"
SEPARATOR = " | "
MOST_TEXT = 500  # characters of an activity
EVERY_SECONDS = 5.0  # minimum time between two lines about the same activity


def progress_line(host: str, text: str) -> str:
    """Return a line that reports an activity of a host.

    >>> progress_line("node0", "downloading: 12 of 450 MB")
    'progress | node0 | downloading: 12 of 450 MB'
    """
    return SEPARATOR.join((MARK, host, text))


def read_progress(line: str) -> tuple[str, str] | None:
    """Return the host and the activity of such a line; None for any other line.

    >>> read_progress("progress | node0 | downloading: 12 of 450 MB")
    ('node0', 'downloading: 12 of 450 MB')
    >>> read_progress("[WARNING]: x")
    """
    mark, _, rest = line.strip().partition(SEPARATOR)
    host, separator, text = rest.partition(SEPARATOR)
    if mark != MARK or not separator or "\n" in text:
        return None
    return host, text[:MOST_TEXT]


def megabytes(count: float) -> str:
    """Return bytes as MB or GB.

    >>> megabytes(12_400_000), megabytes(1_440_000_000)
    ('12 MB', '1.4 GB')
    """
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


class Reporter:
    """Reports the activities of one host in a task.

    Args:
        host: name of the host in the inventory.
        show: function that prints a line, such as the method `display` of Ansible's Display.
    """

    def __init__(
        self,
        host: str,
        show: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host, self._show, self._clock = host, show, clock
        self._activity, self._shown_at = "", float("-inf")

    def report(self, activity: str, detail: str = "") -> None:
        """Print an activity; skip the line if a recent one was about the same activity."""
        now = self._clock()
        if activity == self._activity and now < self._shown_at + EVERY_SECONDS:
            return
        self._activity, self._shown_at = activity, now
        self._show(progress_line(self._host, f"{activity}: {detail}" if detail else activity))

    def report_bytes(self, activity: str, done: float, total: float = 0) -> None:
        """Print an activity with its bytes, which are 0 if they are not known."""
        count = megabytes(done) if done or total else ""
        self.report(activity, f"{count} of {megabytes(max(done, total))}" if total else count)
