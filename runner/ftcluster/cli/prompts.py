"""Prompts for a language model that come from stdin or are typed."""

import contextlib
import sys
from collections.abc import Iterator

from ftcluster.errors import UsageError

with contextlib.suppress(ImportError):
    import readline  # noqa: F401 - has `input` edit lines

MOST_STDIN = 1 << 20  # characters of a prompt


def is_terminal() -> bool:
    """Whether somebody types and reads."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def asked() -> Iterator[tuple[str, ...]]:
    """Each line that is typed, until Ctrl-D; Ctrl-C begins the line anew."""
    print("A prompt a line, each answered by itself; Ctrl-D ends.", file=sys.stderr)
    while True:
        try:
            line = input("> ")
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            continue
        if line.strip():
            yield (line,)


def from_stdin() -> list[str]:
    """All of stdin as a prompt.

    Raises:
        UsageError: it is a terminal, or too long.
    """
    if sys.stdin.isatty():
        raise UsageError("no prompt is given", 'ftcluster generate RUN "a question"')
    text = sys.stdin.read(MOST_STDIN + 1)
    if len(text) > MOST_STDIN:
        raise UsageError(f"the prompt on stdin has more than {MOST_STDIN:,} characters")
    return [text.rstrip("\n")]
