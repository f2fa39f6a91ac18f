"""Lines that fit a terminal, with colour where it has some; plain lines elsewhere."""

import sys
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console
from rich.text import Text

INDENT = "  "  # of what continues a line
NARROWEST = 20


def print_lines(lines: Iterable[Text | str], stream: TextIO | None = None) -> None:
    """Print lines to stdout or another stream; on a terminal, between words that fit it."""
    stream = stream or sys.stdout
    console = Console(file=stream, highlight=False, emoji=False)
    for line in lines:
        text = Text(line) if isinstance(line, str) else line
        if not console.is_terminal:
            print(text.plain, file=stream)
            continue
        before = " " * (len(text.plain) - len(text.plain.lstrip()))
        width = max(NARROWEST, console.width - len(before + INDENT))
        first, *others = text.wrap(console, width) or [Text()]
        console.print(first)
        for other in others:
            console.print(Text(before + INDENT) + other)
