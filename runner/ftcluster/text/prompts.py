"""Reads prompts that a user types on a terminal or sends through a pipe."""

import contextlib
import signal
import sys
from collections.abc import Iterator

from ftcluster.errors import UsageError

with contextlib.suppress(ImportError):
    import readline  # noqa: F401 - makes `input` editable

MOST_STDIN = 1 << 20  # maximum length of a prompt in characters


def is_terminal() -> bool:
    """Return True if stdin and stdout are a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def typed_lines() -> Iterator[str]:
    """Yield the lines that the user types until Ctrl-D; Ctrl-C discards the current line."""
    print("Type one prompt per line. Ctrl-D ends the command.", file=sys.stderr)
    while True:
        try:
            line = _line()
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            continue
        if line.strip():
            yield line


def _line() -> str:
    """Read a line; while the user types, signals have the same effect as in a shell.

    Raises:
        KeyboardInterrupt: the user pressed Ctrl-C.
        EOFError: the user pressed Ctrl-D, or the process received a signal to end.
    """

    def end(*_: object) -> None:
        raise EOFError

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return input("> ")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def all_of_stdin() -> str:
    """Return the text that is piped to stdin.

    Raises:
        UsageError: nothing is piped, or the text is too long.
    """
    if sys.stdin.isatty():
        raise UsageError("there is no prompt", 'ftcluster generate RUN "a question"')
    text = sys.stdin.read(MOST_STDIN + 1)
    if len(text) > MOST_STDIN:
        raise UsageError(f"the prompt on stdin is longer than {MOST_STDIN:,} characters")
    return text.rstrip("\n")
