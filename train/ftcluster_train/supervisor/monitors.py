"""Readers of mpirun's output during a run: one for training, one for a user's script.

Standard library only.
"""

import contextlib
import re
import socket
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ftcluster_common.protocol.launch import Launch
from ftcluster_train.errors import STOPPED_LINE, read_error_line
from ftcluster_train.io.events import OUTPUT, EventWriter, event_line
from ftcluster_train.io.mpi_output import (
    RankEnd,
    RankOutput,
    Splitter,
    Stream,
    append_to_log,
)
from ftcluster_train.supervisor.heartbeats import STOPPED_EXIT_CODE
from ftcluster_train.supervisor.rank_life import Trouble
from ftcluster_train.supervisor.stop_causes import NO_CAUSE, StopCause

LAST_LINES = 12
# patterns in a script's last output, and the hint for each
HINTS = (
    (
        re.compile(r"^ModuleNotFoundError: ", re.MULTILINE),
        "to add packages to the stack, use ftcluster run --requirements FILE -- SCRIPT; ",
    ),
    (
        re.compile(r"not compiled with CUDA|NCCL built in|_cuda_setDevice|CUDA library"),
        'the hosts have no GPU: use torch.device("cpu") where the script sets a device{at}, and '
        "do not name a backend; ",
    ),
    (
        re.compile(r"EADDRINUSE"),
        "ftcluster starts a process for each rank, with RANK, WORLD_SIZE and MASTER_PORT: a script "
        "that starts more (mp.spawn) must call the function directly; ",
    ),
)
OWN_LINE = re.compile(r'File "(?!<|[^"]*/lib/python3)([^"]+)", line (\d+)')
KILLED = re.compile(rb"=   RANK (\d+) PID \d+ RUNNING AT ")  # mpirun's message


@dataclass(frozen=True)
class Ending:
    """The outcome of a run.

    Attributes:
        state: done, failed or stopped.
        exit_code: exit code of mpirun, or of the script on the rank that failed first.
        errors: fields of each event `error`.
        seconds: time from the first launch to the end of the last rank; 0 if no rank was started.
        restartable: True if a restart may help, because the program itself did not cause the
            failure.
        cause: who stopped the run, if the state is stopped.
    """

    state: str
    exit_code: int
    errors: list[dict[str, Any]]
    seconds: float = 0.0
    restartable: bool = False
    cause: StopCause = NO_CAUSE


class Watch(ABC):
    """A reader of mpirun's and the ranks' output that determines how the run ended."""

    @property
    @abstractmethod
    def over(self) -> bool:
        """True if ranks that still run should be ended after a grace period."""

    @abstractmethod
    def feed(self, stream: Stream, data: bytes) -> None:
        """Read a piece of mpirun's output."""

    def pause(self) -> None:  # noqa: B027
        """React to a moment without output."""

    @abstractmethod
    def close(self) -> None:
        """Finish after the last piece of output."""

    def blame(self, trouble: list[Trouble]) -> list[Trouble]:
        """Return the troubles that caused the failure; call this after `close`."""
        return trouble

    @abstractmethod
    def ending(self, exit_code: int) -> Ending:
        """Return how the run ended, for mpirun's exit code."""


def watch_of(launch: Launch, events: EventWriter) -> Watch:
    """Return the watch for this kind of launch."""
    if launch.script:
        return _ScriptWatch(launch, events)
    return _TrainingWatch(Path(launch.run_dir), launch.run)


class _TrainingWatch(Watch):
    """The watch of a training run, which writes ranks.log and a log for each rank.

    Lines with a marker are errors.
    """

    def __init__(self, run_dir: Path, run: str) -> None:
        self._path = run_dir / "ranks.log"
        self._path.touch()
        self._logs = run_dir / "logs"
        self._splitter = Splitter(run)
        self._rests: dict[int | None, bytes] = {}  # incomplete lines
        self._lines: list[str] = []
        self._errors: list[dict[str, Any]] = []
        self._stopped = False
        self._killed: int | None = None  # the rank that mpirun reports first

    @property
    def over(self) -> bool:
        return bool(self._errors)  # the other ranks wait in a collective for the failed rank

    def feed(self, _stream: Stream, data: bytes) -> None:
        for rank, piece in self._splitter.feed(data):
            *lines, self._rests[rank] = (self._rests.get(rank, b"") + piece).split(b"\n")
            for line in lines:
                self._take(rank, line)

    def close(self) -> None:
        for rank, piece in self._splitter.close():
            self._rests[rank] = self._rests.get(rank, b"") + piece
        for rank, line in self._rests.items():
            if line:
                self._take(rank, line)

    def _take(self, rank: int | None, line: bytes) -> None:
        if rank is not None:
            self._logs.mkdir(exist_ok=True)
            append_to_log(self._logs / f"rank-{rank}.log", line + b"\n")
            line = b"[%d] %s" % (rank, line)
        elif self._killed is None and (match := KILLED.match(line)):
            self._killed = int(match[1])
        append_to_log(self._path, line + b"\n")
        text = line.decode(errors="replace").rstrip()
        self._lines = [*self._lines, text][-LAST_LINES:] if text else self._lines
        error = read_error_line(text)
        if error:
            self._errors.append(error)
        self._stopped = self._stopped or text.endswith(STOPPED_LINE)

    def blame(self, trouble: list[Trouble]) -> list[Trouble]:
        """Return only the trouble of the rank that was killed first: mpirun then kills the others.

        Return all trouble if a rank has another cause, or if that rank is unknown.
        """
        if any(problem.cause != "signal" for problem in trouble):
            return trouble
        return [problem for problem in trouble if problem.rank == self._killed] or trouble

    def ending(self, exit_code: int) -> Ending:
        if self._stopped and not self._errors:
            return Ending("stopped", STOPPED_EXIT_CODE, [])
        if exit_code == 0 and not self._errors:
            return Ending("done", 0, [])
        last = "\n".join(self._lines)
        errors = self._errors or [_mpirun_failed(exit_code, last, str(self._path))]
        restartable = all(error.get("restartable") for error in errors)
        return Ending("failed", exit_code, errors, restartable=restartable)


class _ScriptWatch(Watch):
    """The watch of a user's script: each rank has a log, and OUTPUT gets rank 0's output.

    See `RankOutput`.
    """

    def __init__(self, launch: Launch, events: EventWriter) -> None:
        logs = Path(launch.run_dir) / "logs"
        self._where = f"{launch.hosts[0].name}:{logs}" if len(launch.hosts) > 1 else str(logs)
        self._ranks = len(launch.rank_hosts)
        self._events = events
        self._output = RankOutput(logs, launch.run, self._write_output)
        self._path = Path(launch.run_dir) / OUTPUT
        for end in ("", ".1"):  # the files that `ftcluster logs` shows
            combined = Path(launch.run_dir) / f"ranks.log{end}"
            combined.unlink(missing_ok=True)
            combined.symlink_to(f"logs/rank-0.log{end}")

    @property
    def over(self) -> bool:
        # mpirun also waits for processes that a script has left in the background
        output = self._output
        return bool(output.failure or output.errors) or len(output.ends) >= self._ranks

    def feed(self, stream: Stream, data: bytes) -> None:
        before = self._output.backend
        self._output.feed(stream, data)
        if self._output.backend != before:
            with contextlib.suppress(OSError):  # disk full
                self._events.write("backend", name=self._output.backend)
        self._output.flush()

    def pause(self) -> None:
        self._output.flush()

    def close(self) -> None:
        self._output.close()

    def _write_output(self, stream: Stream, text: str) -> None:
        append_to_log(self._path, event_line("output", rank=0, stream=stream, text=text))

    def blame(self, trouble: list[Trouble]) -> list[Trouble]:
        """Return the trouble of the rank whose failure made mpirun end the others, if named.

        If a script hangs, return the troubles of the ranks that are in no collective, because the
        other ranks wait for them.
        """
        if all(problem.cause == "signal" for problem in trouble):  # mpirun kills the others
            reported = [
                Trouble(error["host"], error["rank"], 0, "exit", error["message"], error["hint"])
                for error in self._output.errors
            ]
            killed = self._output.killed()
            first = [problem for problem in trouble if killed and problem.rank == killed.rank]
            return reported or first or trouble
        if any(problem.cause != "hung" or problem.rank is None for problem in trouble):
            return trouble
        frames = [self._output.python_frame(problem.rank or 0) for problem in trouble]
        waited_for = [
            replace(hung, message=f"{hung.message}; it is in {at.function}, {at.path}:{at.line}")
            for hung, at in zip(trouble, frames, strict=True)
            if at and not at.waits_for_others
        ]
        return waited_for or trouble[:1]

    def ending(self, exit_code: int) -> Ending:
        output = self._output
        if output.errors:  # errors of the process that starts the script
            return Ending("failed", exit_code or 1, output.errors)
        failure = output.failure or output.killed()
        if failure:
            error = self._failed(failure)
            return Ending("failed", failure.code, [error], restartable=bool(failure.signal))
        if exit_code == 0 or len(output.ends) >= self._ranks:
            return Ending("done", 0, [])
        # mpirun itself failed, or a rank failed before its script began
        last = next(filter(None, map(output.last_lines, (None, *output.heard))), "")
        return Ending("failed", exit_code, [_mpirun_failed(exit_code, last, self._where)])

    def _failed(self, failure: RankEnd) -> dict[str, Any]:
        last = self._output.last_lines(failure.rank)
        output = f"; its last output:\n{last}" if last else " without output"
        memory = (
            "Linux kills processes this way when memory is short; "
            if failure.signal == "SIGKILL"
            else ""
        )
        lines = OWN_LINE.findall(last)
        at = f" ({lines[-1][0]}:{lines[-1][1]})" if lines else ""
        hint = "".join(text.format(at=at) for sign, text in HINTS if sign.search(last))
        log = f"{self._where}/rank-{failure.rank}.log"
        return {
            "message": f"{failure.description}{output}",
            "hint": f"{hint}{memory}its whole output is in {log}",
            "host": failure.host,
            "rank": failure.rank,
        }


def _mpirun_failed(exit_code: int, last: str, log: str) -> dict[str, Any]:
    return {
        "message": f"mpirun ended with exit code {exit_code}; its last output:\n{last}",
        "hint": f"the ranks' whole output is in {log}",
        "host": socket.gethostname(),
        "rank": None,
    }
