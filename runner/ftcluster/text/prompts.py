"""Prompts that are typed on a terminal, or piped."""

import contextlib
import signal
import sys
from collections.abc import Iterator

from ftcluster.errors import UsageError

with contextlib.suppress(ImportError):
    import readline  # noqa: F401 - has `input` edit lines

MOST_STDIN = 1 << 20  # characters of a prompt


def is_terminal() -> bool:
    """Whether a person types and reads."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def typed_lines() -> Iterator[str]:
    """Each line that is typed, until Ctrl-D or a request to end; Ctrl-C begins the line anew."""
    print("A prompt a line, each answered by itself; Ctrl-D ends.", file=sys.stderr)
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
    """A line, whatever takes signals otherwise.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed.
        EOFError: Ctrl-D was, or this command was asked to end.
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
    """The text that is piped.

    Raises:
        UsageError: nothing is, or it is too long.
    """
    if sys.stdin.isatty():
        raise UsageError("no prompt is given", 'ftcluster generate RUN "a question"')
    text = sys.stdin.read(MOST_STDIN + 1)
    if len(text) > MOST_STDIN:
        raise UsageError(f"the prompt on stdin has more than {MOST_STDIN:,} characters")
    return text.rstrip("\n")
