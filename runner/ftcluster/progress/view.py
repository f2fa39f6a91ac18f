"""The one interface that commands show their progress through."""

import sys
from typing import Protocol

from rich.console import Console

from ftcluster.ansible.playbook import TaskEvent
from ftcluster.progress.live import LiveView
from ftcluster.progress.plain import PlainView
from ftcluster.progress.state import RunProgress, SetupProgress


class View(Protocol):
    """Shows progress on stderr; stdout is the result's."""

    def setup_event(self, progress: SetupProgress, event: TaskEvent) -> None:
        """A playbook's event has been folded into `progress`."""

    def run_event(self, progress: RunProgress, kind: str) -> None:
        """An event of this kind has been folded into `progress`."""

    def tick(self) -> None:
        """Time has passed."""

    def say(self, text: str) -> None:
        """One line for the user that is neither."""

    def close(self) -> None:
        """Leave the terminal as it should stay."""


def make_view(verbose: bool) -> View:
    """A live view on a terminal, plain lines elsewhere and under -v."""
    console = Console(file=sys.stderr, highlight=False)
    if console.is_terminal and not console.is_dumb_terminal and not verbose:
        return LiveView(console)
    return PlainView(console, verbose)
