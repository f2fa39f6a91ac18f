"""Progress in a notebook: the terminal's picture, redrawn in the cell's output."""

import io
import sys
import time
from importlib import import_module
from typing import Any

from rich.console import Console

from ftcluster.progress.pictures import run_picture, setup_picture
from ftcluster.progress.state import RunProgress, SetupProgress
from ftcluster.progress.view import TerminalView

WIDTH = 100  # width in characters
LEAST_SECONDS = 0.5  # minimum seconds between two redraws
PAGE = "<pre style='line-height:normal'>{code}</pre>"


def in_notebook() -> bool:
    """Return True if this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def page_of(progress: SetupProgress | RunProgress) -> str:
    """Return the picture as HTML; rich escapes all text in the picture."""
    page = Console(record=True, file=io.StringIO(), width=WIDTH)
    if isinstance(progress, RunProgress):
        page.print(run_picture(progress))
    else:
        page.print(setup_picture(progress))
    return page.export_html(code_format=PAGE, inline_styles=True)


class NotebookView(TerminalView):
    """A view that draws a setup or a run into the cell's output and prints notes below."""

    def __init__(self) -> None:
        super().__init__(Console(file=sys.stdout, width=WIDTH, highlight=False))
        self._shown: SetupProgress | RunProgress | None = None
        self._handle: Any = None
        self._drawn = 0.0

    def setup_event(self, progress: SetupProgress, event: Any) -> None:
        """Show the hosts."""
        self._show(progress)
        super().setup_event(progress, event)

    def run_event(self, progress: RunProgress, kind: str) -> None:
        """Show the run."""
        self._show(progress)
        super().run_event(progress, kind)

    def close(self) -> None:
        """Draw the last state."""
        super().close()
        self._draw()
        self._shown = self._handle = None

    def _show(self, progress: SetupProgress | RunProgress) -> None:
        if self._shown is not progress:
            self.close()
            self._shown = progress
        if time.monotonic() - self._drawn > LEAST_SECONDS:
            self._draw()

    def _draw(self) -> None:
        if self._shown is None:
            return
        self._drawn = time.monotonic()
        display = import_module("IPython.display")
        shown = display.HTML(page_of(self._shown))
        if self._handle is None:
            self._handle = display.display(shown, display_id=True)
        else:
            self._handle.update(shown)
