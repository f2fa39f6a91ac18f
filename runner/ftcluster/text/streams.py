"""Standard output and standard error that nobody reads any more."""

import contextlib
import errno
import io
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TextIO

from ftcluster.text.printable import script_output

READER_GONE = 128 + signal.SIGPIPE  # the exit code of a program that this signal ends
GONE = (errno.EPIPE, errno.EIO)  # of a pipe, and of a terminal that was closed


class _Dropping(io.FileIO):
    """A file whose reader may go away; what is written then is dropped."""

    unread = False

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in GONE:
                raise
            self.unread = True
            return memoryview(data).nbytes


def is_unread(stream: TextIO) -> bool:
    """Whether a stream of `standard_streams` has dropped something."""
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return isinstance(raw, _Dropping) and raw.unread


@contextlib.contextmanager
def standard_streams() -> Iterator[None]:
    """Let progress and errors end quietly with their reader; a command's work goes on.

    A stream that the caller has closed (`2>&-`) is dropped as well: Python would write errors into
    the result.
    """
    before = sys.stdout, sys.stderr
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        sys.stdout = before[0] or nowhere
        sys.stderr = _without_reader(before[1]) if before[1] else nowhere
        try:
            yield
        finally:
            sys.stderr.flush()
            sys.stdout, sys.stderr = before


def _without_reader(stream: TextIO) -> TextIO:
    """The same stream, which stays open; one that is no file, as in tests, as it is."""
    try:
        raw = _Dropping(stream.fileno(), "w", closefd=False)
    except (OSError, ValueError):
        return stream
    buffer = io.BufferedWriter(raw)
    return io.TextIOWrapper(buffer, stream.encoding, stream.errors, line_buffering=True)


def drop_output() -> None:
    """Drop what stdout still holds; Python would report at its end that it cannot be written."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def shown_on(stream: TextIO, text: str) -> str:
    """Return the output of a script as this stream gets it: whole, unless it is a terminal."""
    return script_output(text) if stream.isatty() else text


class Show:
    """Writes the output of rank 0 as it comes; a terminal gets its text and colours alone.

    Attributes:
        closed: whether the reader is gone, as with `| head`.
        in_line: whether the last line is incomplete.
    """

    def __init__(self, stdout: TextIO, stderr: TextIO) -> None:
        self.closed = False
        self.in_line = False
        self._streams = {"stdout": stdout, "stderr": stderr}

    def __call__(self, stream: Literal["stdout", "stderr"], text: str) -> None:
        """Write text to one of the streams."""
        if self.closed:
            return
        target = self._streams[stream]
        text = shown_on(target, text)
        try:
            target.write(text.encode(target.encoding, "replace").decode(target.encoding))
            target.flush()
            self.in_line = not text.endswith("\n")
            self.closed = is_unread(target)
        except BrokenPipeError:
            self.closed = True
