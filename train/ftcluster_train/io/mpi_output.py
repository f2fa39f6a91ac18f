"""Splits mpirun's output into a log for each rank and messages for the supervisor.

mpirun reads the ranks' output in pieces, and labels each piece and each line in it. Therefore,
labels also occur in the middle of lines, and one line may contain pieces from several ranks.
MPICH's Hydra, on which Intel MPI's mpirun is based, does this with -l and with -prepend-pattern
(seen with Intel MPI 2021.18). The label contains the run's id, so the text `[1] ` in a script's
output is not mistaken for a label. Standard library only.
"""

import codecs
import contextlib
import itertools
import json
import re
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ftcluster_train.errors import MARKER, read_error_line

Stream = Literal["stdout", "stderr"]

END_MARKER = "FTCLUSTER-RANK "
BACKEND_MARKER = "FTCLUSTER-BACKEND "
MARKERS = (END_MARKER.encode(), BACKEND_MARKER.encode(), MARKER.encode())
FLUSH_SECONDS = 0.2  # interval at which rank 0's output is passed on
FLUSH_CHARACTERS = 65536
LAST_BYTES = 8192  # bytes of each rank's last output that are kept for `last_lines`
LAST_LINES = 15
LOG_BYTES = 32 << 20  # size limit of a log; the previous log is kept as NAME.1
# mpirun's message about a rank that was killed together with the process that started it
BANNER = re.compile(r"RANK (\d+) PID \d+ RUNNING AT (\S+)\s+=\s+KILLED BY SIGNAL: (\d+)")
# A frame in faulthandler's output, in which the main thread comes last. Frames of the backend impi
# are skipped, so that the match is torch's call.
FRAME = re.compile(
    r'Current thread .*\n(?:  File ".+/(?:threading|mpi_work|ftcluster_mpi/work)\.py", .+\n)*'
    r'  File "(.+)", line (\d+) in (.+)'
)


def append_to_log(path: Path, data: bytes, limit_bytes: int = LOG_BYTES) -> None:
    """Append to a log, and rename a full log first; if the disk is full, the data is lost."""
    with contextlib.suppress(OSError):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size + len(data) > limit_bytes:
                path.replace(path.with_name(f"{path.name}.1"))
        with path.open("ab") as file:
            file.write(data)


@dataclass(frozen=True)
class PythonFrame:
    """A position in the source code of a Python program."""

    path: str
    line: int
    function: str

    @property
    def waits_for_others(self) -> bool:
        """True if the frame is in a collective of torch."""
        return "/torch/distributed/" in self.path


@dataclass(frozen=True)
class RankEnd:
    """The end of one rank's script.

    Attributes:
        host: name of the host, as the host itself reports it.
        code: exit code; 128+n after signal n.
        signal: name of the signal, or "".
    """

    rank: int
    host: str
    code: int
    signal: str = ""

    def line(self) -> str:
        """Return a line for the rank's output; `RankOutput` removes this line from the logs."""
        return f"{END_MARKER}{json.dumps(asdict(self))}\n"

    @property
    def description(self) -> str:
        """The exit code or signal, for a message."""
        if self.signal:
            return f"was killed by signal {self.code - 128} ({self.signal})"
        return f"ended with exit code {self.code}"


class Splitter:
    """Separates the output of the ranks, no matter where the data was cut into pieces."""

    def __init__(self, run: str) -> None:
        self._head = f"[{run} ".encode()
        self._label = re.compile(re.escape(self._head) + rb"(\d{1,8})\] ")
        self._rank: int | None = None
        self._held = b""

    def feed(self, data: bytes) -> list[tuple[int | None, bytes]]:
        """Return pairs of rank and text, in order; rank None stands for mpirun itself.

        If the end of the data may be part of a label, it is held back until the next call.
        """
        data = self._held + data
        pieces: list[tuple[int | None, bytes]] = []
        at = 0
        for label in self._label.finditer(data):
            self._take(data[at : label.start()], pieces)
            self._rank = int(label[1])
            at = label.end()
        end = len(data) - self._half_a_label(data[at:])
        self._take(data[at:end], pieces)
        self._held = data[end:]
        return pieces

    def close(self) -> list[tuple[int | None, bytes]]:
        """Return the text that was held back."""
        pieces: list[tuple[int | None, bytes]] = []
        self._take(self._held, pieces)
        self._held = b""
        return pieces

    def _take(self, text: bytes, pieces: list[tuple[int | None, bytes]]) -> None:
        line_end = text.find(b"\n") + 1
        if self._rank is not None and line_end:
            # the next line of a rank has its own label
            pieces.append((self._rank, text[:line_end]))
            self._rank, text = None, text[line_end:]
        if text:
            pieces.append((self._rank, text))

    def _half_a_label(self, text: bytes) -> int:
        """Return the number of bytes at the end of the text that may be the start of a label."""
        part = text[text.rfind(b"[") :] if b"[" in text else b""
        number = part.removeprefix(self._head)
        begun = part.startswith(self._head) and re.fullmatch(rb"\d{0,8}(\d\])?", number)
        return len(part) if begun or self._head.startswith(part) else 0


class MarkedLines:
    """Separates the lines for the supervisor from the rest of a rank's output."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> tuple[bytes, list[str]]:
        """Return the rank's other output, and the complete lines for the supervisor."""
        data = self._held + data
        output, lines = b"", []
        while True:
            starts = [at for marker in MARKERS if (at := data.find(marker)) >= 0]
            start = min(starts, default=-1)
            end = data.find(b"\n", start) + 1 if starts else 0
            if not end:
                break
            output += data[:start]
            lines.append(data[start:end].decode(errors="replace"))
            data = data[end:]
        keep = len(data) - start if starts else max(_overlap(data, marker) for marker in MARKERS)
        cut = len(data) - keep
        self._held = data[cut:]
        return output + data[:cut], lines

    def close(self) -> bytes:
        """Return the text that was held back."""
        held, self._held = self._held, b""
        return held


def _overlap(text: bytes, marker: bytes) -> int:
    """Return the number of bytes at the end of the text that are the start of the marker."""
    for count in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:count]):
            return count
    return 0


def read_end(line: str) -> RankEnd | None:
    """Return the `RankEnd` from a line that `RankEnd.line` encoded; None for any other line."""
    _, marker, text = line.partition(END_MARKER)
    try:
        return RankEnd(**json.loads(text)) if marker else None
    except (ValueError, TypeError, RecursionError):
        return None


class RankOutput:
    """Writes each rank's output to logs/rank-N.log, and passes rank 0's output to `write`.

    Attributes:
        ends: ends of the ranks' scripts, in the order in which they were reported.
        errors: fields of the events `error` that ranks have reported.
        backend: backend of the process group that the script created; "" if it created none.
    """

    def __init__(
        self,
        logs: Path,
        run: str,
        write: Callable[[Stream, str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ends: list[RankEnd] = []
        self.errors: list[dict[str, Any]] = []
        self.backend = ""
        self._logs = logs
        self._write = write
        self._clock = clock
        self._splitters: dict[Stream, Splitter] = {
            "stdout": Splitter(run),
            "stderr": Splitter(run),
        }
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders: dict[Stream, codecs.IncrementalDecoder] = {
            "stdout": decoder("replace"),
            "stderr": decoder("replace"),
        }
        self._marked: dict[tuple[int | None, Stream], MarkedLines] = {}
        self._last: dict[int | None, bytes] = {}
        self._pending: list[tuple[Stream, str]] = []
        self._flushed = clock()
        logs.mkdir(exist_ok=True)

    @property
    def failure(self) -> RankEnd | None:
        """The end of the rank that failed first."""
        return next((end for end in self.ends if end.code), None)

    @property
    def heard(self) -> list[int]:
        """The ranks that have written any output, in order."""
        return sorted(rank for rank in self._last if rank is not None)

    def feed(self, stream: Stream, data: bytes) -> None:
        """Process a piece of mpirun's output."""
        self._take(stream, self._splitters[stream].feed(data))

    def flush(self, at_once: bool = False) -> None:
        """Pass rank 0's output to `write`, unless that was done less than FLUSH_SECONDS ago."""
        now = self._clock()
        size = sum(len(text) for _, text in self._pending)
        due = at_once or now - self._flushed >= FLUSH_SECONDS or size >= FLUSH_CHARACTERS
        if not due or not self._pending:
            return
        self._flushed = now
        for stream, group in itertools.groupby(self._pending, key=lambda piece: piece[0]):
            text = "".join(text for _, text in group)
            for start in range(0, len(text), FLUSH_CHARACTERS):
                self._write(stream, text[start : start + FLUSH_CHARACTERS])
        self._pending = []

    def close(self) -> None:
        """Process the output that was held back; call this after the last piece."""
        for stream, splitter in self._splitters.items():
            self._take(stream, splitter.close())
        for (rank, stream), marked in self._marked.items():
            self._log(rank, stream, marked.close())
        for stream, decoder in self._decoders.items():
            rest = decoder.decode(b"", final=True)
            if rest:
                self._pending.append((stream, rest))
        self.flush(at_once=True)

    def last_lines(self, rank: int | None) -> str:
        """Return the last lines of a rank, or of mpirun for None; a progress bar is one line."""
        text = self._last.get(rank, b"").decode(errors="replace")
        lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
        return "\n".join([line.rstrip() for line in lines if line.strip()][-LAST_LINES:])

    def python_frame(self, rank: int) -> PythonFrame | None:
        """Return the rank's position in the Python stacks that it last wrote, or None."""
        match = FRAME.search(self._last.get(rank, b"").decode(errors="replace"))
        return PythonFrame(match[1], int(match[2]), match[3]) if match else None

    def killed(self) -> RankEnd | None:
        """Return the rank that mpirun reports as killed by a signal; None if there is none."""
        match = BANNER.search(self._last.get(None, b"").decode(errors="replace"))
        if not match:
            return None
        number = int(match[3])
        return RankEnd(int(match[1]), match[2], 128 + number, signal_name(number))

    def _take(self, stream: Stream, pieces: list[tuple[int | None, bytes]]) -> None:
        gathered: dict[int | None, bytes] = {}
        for rank, data in pieces:
            gathered[rank] = gathered.get(rank, b"") + data
        for rank, data in gathered.items():
            output, lines = self._marked.setdefault((rank, stream), MarkedLines()).feed(data)
            self._log(rank, stream, output)
            self.ends += filter(None, map(read_end, lines))
            self.errors += filter(None, map(read_error_line, lines))
            for line in lines:
                self.backend = line.partition(BACKEND_MARKER)[2].strip() or self.backend

    def _log(self, rank: int | None, stream: Stream, data: bytes) -> None:
        if not data:
            return
        self._last[rank] = (self._last.get(rank, b"") + data)[-LAST_BYTES:]
        name = "mpirun.log" if rank is None else f"rank-{rank}.log"
        append_to_log(self._logs / name, data)
        if rank == 0:
            self._pending.append((stream, self._decoders[stream].decode(data)))


def signal_name(number: int) -> str:
    """Return a signal's name, such as SIGKILL for 9; a real-time signal has only a number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
