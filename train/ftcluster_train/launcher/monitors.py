"""What the supervisor makes of the words of the ranks: of a training, and of a user's script.

Standard library only: the supervisor uses it.
"""

import contextlib
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ftcluster_train.errors import read_error_line
from ftcluster_train.io.events import EventWriter
from ftcluster_train.launcher.mpi_output import RankEnd, RankOutput, Stream

LAST_LINES = 12


@dataclass(frozen=True)
class Ending:
    """How a run ended.

    Attributes:
        state: done or failed.
        exit_code: mpirun's, or that of the script of the rank that failed first.
        errors: for each event `error` its fields.
    """

    state: str
    exit_code: int
    errors: list[dict[str, Any]]


class Watch(Protocol):
    """Takes what mpirun says while it runs, and knows afterwards how the run ended."""

    @property
    def over(self) -> bool:
        """Whether ranks that are still there should be ended after a grace period."""

    def feed(self, stream: Stream, data: bytes) -> None:
        """Take what mpirun has said."""

    def pause(self) -> None:
        """Nothing has come for a moment."""

    def close(self) -> None:
        """Nothing more will come."""

    def ending(self, exit_code: int) -> Ending:
        """How the run ended, given mpirun's exit code."""


class TrainingWatch:
    """Ranks of ftcluster's own: their words go to ranks.log; errors are lines that they mark."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / "ranks.log"
        self._log = self._path.open("wb", buffering=0)
        self._rest = b""
        self._lines: list[str] = []
        self._errors: list[dict[str, Any]] = []

    @property
    def over(self) -> bool:
        """See Watch; the others wait for the rank that has failed in a collective."""
        return bool(self._errors)

    def feed(self, _stream: Stream, data: bytes) -> None:
        """See Watch."""
        with contextlib.suppress(OSError):  # disk full
            self._log.write(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(line)

    def pause(self) -> None:
        """See Watch."""

    def close(self) -> None:
        """See Watch."""
        self._take(self._rest)
        self._log.close()

    def _take(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        self._lines = [*self._lines, text][-LAST_LINES:] if text else self._lines
        error = read_error_line(text)
        if error:
            self._errors.append(error)

    def ending(self, exit_code: int) -> Ending:
        """See Watch."""
        if exit_code == 0 and not self._errors:
            return Ending("done", 0, [])
        words = "\n".join(self._lines)
        return Ending(
            "failed", exit_code, self._errors or [_mpirun_failed(exit_code, words, str(self._path))]
        )


class ScriptWatch:
    """A user's script on every rank: see `RankOutput`; rank 0's words become events.

    Args:
        run_dir: the run's folder on the head.
        run: the run's id.
        world_size: number of ranks.
        events: where to tell.
        head: the inventory's name of this host, or "" where it is the only one.
    """

    def __init__(
        self, run_dir: Path, run: str, world_size: int, events: EventWriter, head: str = ""
    ) -> None:
        self._logs = run_dir / "logs"
        self._where = f"{head}:{self._logs}" if head else str(self._logs)
        self._world_size = world_size
        self._events = events
        self._output = RankOutput(self._logs, run, self._tell)

    @property
    def over(self) -> bool:
        """See Watch; mpirun also waits for what a script has left in the background."""
        output = self._output
        return bool(output.failure or output.errors) or len(output.ends) >= self._world_size

    def feed(self, stream: Stream, data: bytes) -> None:
        """See Watch."""
        self._output.feed(stream, data)
        self._output.tell_on()

    def pause(self) -> None:
        """See Watch."""
        self._output.tell_on()

    def close(self) -> None:
        """See Watch."""
        self._output.close()

    def _tell(self, stream: Stream, text: str) -> None:
        with contextlib.suppress(OSError):  # disk full
            self._events.write("output", rank=0, stream=stream, text=text)

    def ending(self, exit_code: int) -> Ending:
        """See Watch."""
        output = self._output
        if output.errors:  # of what starts the script
            return Ending("failed", exit_code or 1, output.errors)
        failure = output.failure or output.killed()
        if failure:
            return Ending("failed", failure.code, [self._failed(failure)])
        if exit_code == 0 or len(output.ends) >= self._world_size:
            return Ending("done", 0, [])
        # mpirun by itself, or a rank before its script began
        words = next(filter(None, map(output.last_words, (None, *output.heard))), "")
        return Ending("failed", exit_code, [_mpirun_failed(exit_code, words, self._where)])

    def _failed(self, failure: RankEnd) -> dict[str, Any]:
        words = self._output.last_words(failure.rank)
        said = f"; it last said:\n{words}" if words else " without a word"
        memory = "that is what Linux does where memory is short; "
        return {
            "message": f"{failure.words}{said}",
            "hint": f"{memory if failure.signal == 'SIGKILL' else ''}all that it said is in "
            f"{self._where}/rank-{failure.rank}.log",
            "host": failure.host,
            "rank": failure.rank,
        }


def _mpirun_failed(exit_code: int, words: str, log: str) -> dict[str, Any]:
    return {
        "message": f"mpirun ended with exit code {exit_code}; it last said:\n{words}",
        "hint": f"everything the ranks said is in {log}",
        "host": socket.gethostname(),
        "rank": None,
    }
