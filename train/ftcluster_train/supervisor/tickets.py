"""Tickets of runs that wait for a host, in the order in which they were queued.

A ticket is a file in RUNS_DIR/.queue whose name begins with the time of queueing, locked by the
process that waits. The kernel frees the lock however that process ends, and the next process that
reads the queue removes the file. A run has a ticket on each of its hosts, with the same time. All
hosts therefore put the same runs in the same order, and no two runs wait for each other.

Standard library only.
"""

import contextlib
import os
from pathlib import Path

from ftcluster_train.io.locks import EXCLUSIVE, SHARED, try_lock

FOLDER = ".queue"


class Tickets:
    """The queue of a host, and this process's ticket, if it has one."""

    def __init__(self, runs: Path, ticket: str = "") -> None:
        """Draw a ticket, unless `ticket` is empty.

        Args:
            runs: folder of all runs.
            ticket: name of the ticket, see `ticket_name`.
        """
        self._folder, self._ticket = runs / FOLDER, ticket
        self._descriptor: int | None = None
        if ticket:
            with contextlib.suppress(FileExistsError):
                self._folder.mkdir(mode=0o750)
        self.draw()

    def draw(self) -> None:
        """Create and lock this process's file again if another process has removed it."""
        path = self._folder / self._ticket
        if not self._ticket or (self._descriptor is not None and _is_at(self._descriptor, path)):
            return
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)
        # an earlier process of the same run may still have the file, or another process removes it
        if try_lock(descriptor, EXCLUSIVE) and _is_at(descriptor, path):
            self._descriptor = descriptor
        else:
            os.close(descriptor)

    def ahead(self) -> list[str]:
        """Return the ids of the runs ahead of this process; all runs if it has no ticket."""
        try:
            names = sorted(os.listdir(self._folder))  # noqa: PTH208 - names are sorted
        except FileNotFoundError:
            return []
        before = [name for name in names if not self._ticket or name < self._ticket]
        return [name.partition("-")[2] for name in before if self._is_alive(name)]

    def _is_alive(self, name: str) -> bool:
        """Return True if a process holds a ticket; otherwise remove the file."""
        path = self._folder / name
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            if not try_lock(descriptor, SHARED):
                return True
            if _is_at(descriptor, path):
                path.unlink(missing_ok=True)
            return False
        finally:
            os.close(descriptor)


def ticket_name(queued: float, run: str) -> str:
    """Return the name of a run's ticket; names sort by the time of queueing.

    >>> ticket_name(1767262500.25, "mrpc-1")
    '1767262500.250000-mrpc-1'

    Args:
        queued: seconds since 1970.
    """
    return f"{queued:017.6f}-{run}"


def _is_at(descriptor: int, path: Path) -> bool:
    """Return True if an open file is still the file at a path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))  # noqa: PTH116
    except FileNotFoundError:
        return False
