"""Saves the last picture of a setup and a run as SVG."""

import io
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ftcluster.paths import write_atomically
from ftcluster.progress.pictures import run_picture, setup_picture
from ftcluster.progress.state import RunProgress, SetupProgress

WIDTH = 100  # characters


def save_svg(
    path: Path, command: str, setup: SetupProgress, run: RunProgress, summary: str
) -> None:
    """Write what the terminal showed at the end of `command`.

    Raises:
        OSError: the file cannot be written.
    """
    console = Console(file=io.StringIO(), record=True, width=WIDTH, force_terminal=True)
    console.print(Text(f"$ {command}", style="bold"))
    console.print(setup_picture(setup))
    console.print()
    console.print(run_picture(run))
    console.print()
    console.print(summary, highlight=False, markup=False)
    write_atomically(path, console.export_svg(title="ftcluster"), mode=0o644)
