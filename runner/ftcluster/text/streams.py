"""Handles stdout and stderr after their reader has exited."""

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

READER_GONE = 128 + signal.SIGPIPE  # the exit code of a program that SIGPIPE ends
GONE = (errno.EPIPE, errno.EIO)  # errors of a pipe without a reader, and of a closed terminal


class _Dropping(io.FileIO):
    """A file that drops all output after its reader has exited."""

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
    """Return True if a stream inside `standard_streams` dropped output."""
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return isinstance(raw, _Dropping) and raw.unread


@contextlib.contextmanager
def standard_streams() -> Iterator[None]:
    """Drop progress and errors after their reader has exited, so that the command continues.

    Output to a stream that the caller closed (`2>&-`) is dropped too. Otherwise Python would write
    errors into the file with the result.
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
    """Wrap a stream in `_Dropping`; return a stream without a descriptor unchanged."""
    try:
        raw = _Dropping(stream.fileno(), "w", closefd=False)
    except (OSError, ValueError):
        return stream
    buffer = io.BufferedWriter(raw)
    return io.TextIOWrapper(buffer, stream.encoding, stream.errors, line_buffering=True)


def drop_output() -> None:
    """Drop the buffered output of stdout; otherwise Python would report a write error at exit."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def shown_on(stream: TextIO, text: str) -> str:
    """Return a script's output, made safe if the stream is a terminal."""
    return script_output(text) if stream.isatty() else text


class Show:
    """A function that writes rank 0's output as it arrives, made safe for a terminal.

    Attributes:
        closed: True if the reader has exited, for example `| head`.
        in_line: True if the last line is incomplete.
    """

    def __init__(self, stdout: TextIO, stderr: TextIO) -> None:
        self.closed = False
        self.in_line = False
        self._streams = {"stdout": stdout, "stderr": stderr}

    def __call__(self, stream: Literal["stdout", "stderr"], text: str) -> None:
        """Write text to a stream."""
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
