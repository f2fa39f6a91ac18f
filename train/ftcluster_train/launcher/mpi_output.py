"""What the ranks of a script say: mpirun's one stream taken apart, kept a rank and told on.

mpirun reads the ranks in pieces, and puts a label in front of each piece and each line of it, so
that labels also stand in the middle of lines and pieces of several ranks in one line (MPICH's
Hydra, which Intel MPI's mpirun is made from, does so for -l and -prepend-pattern alike; seen with
Intel MPI 2021.18). A label with the run's name in it cannot be mistaken for a script's own `[1] `.

Standard library only: the supervisor uses it.
"""

import codecs
import contextlib
import json
import re
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from ftcluster_train.errors import MARKER, read_error_line

Stream = Literal["stdout", "stderr"]

END_MARKER = "FTCLUSTER-RANK "
MARKERS = (END_MARKER.encode(), MARKER.encode())
TELL_SECONDS = 0.2  # rank 0's words are told on this often, not write by write
TELL_CHARACTERS = 65536
LAST_BYTES = 8192  # kept of each rank for its last words
LAST_LINES = 15
# the banner of mpirun for a rank that was killed together with what started it
BANNER = re.compile(r"RANK (\d+) PID \d+ RUNNING AT (\S+)\s+=\s+KILLED BY SIGNAL: (\d+)")


@dataclass(frozen=True)
class RankEnd:
    """How one rank's script ended.

    Attributes:
        rank: which one.
        host: the host's own name.
        code: its exit code; 128+n after signal n.
        signal: the signal's name, or "".
    """

    rank: int
    host: str
    code: int
    signal: str = ""

    def line(self) -> str:
        """One line of a rank's output, which `RankOutput` takes out again."""
        return f"{END_MARKER}{json.dumps(asdict(self))}\n"

    @property
    def words(self) -> str:
        """Exit code or signal, for a sentence."""
        if self.signal:
            return f"was killed by signal {self.code - 128} ({self.signal})"
        return f"ended with exit code {self.code}"


def label_pattern(run: str) -> str:
    """What mpirun's -prepend-pattern gets; mpirun puts the rank for %r."""
    return f"[{run} %r] "


class Splitter:
    """Takes mpirun's output apart, however it was cut into pieces.

    Args:
        run: the run's id, which is in the labels.
    """

    def __init__(self, run: str) -> None:
        self._head = f"[{run} ".encode()
        self._label = re.compile(re.escape(self._head) + rb"(\d+)\] ")
        self._rank: int | None = None
        self._held = b""

    def feed(self, data: bytes) -> list[tuple[int | None, bytes]]:
        """Whose is what, in order; None is mpirun itself. What may be half a label waits."""
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
        """What has waited for the rest of a label that did not come."""
        pieces: list[tuple[int | None, bytes]] = []
        self._take(self._held, pieces)
        self._held = b""
        return pieces

    def _take(self, text: bytes, pieces: list[tuple[int | None, bytes]]) -> None:
        line_end = text.find(b"\n") + 1
        if self._rank is not None and line_end:
            # the next line of a rank has a label of its own
            pieces.append((self._rank, text[:line_end]))
            self._rank, text = None, text[line_end:]
        if text:
            pieces.append((self._rank, text))

    def _half_a_label(self, text: bytes) -> int:
        """How many bytes at the end of the text may be the beginning of a label."""
        part = text[text.rfind(b"[") :] if b"[" in text else b""
        number = part.removeprefix(self._head)
        begun = part.startswith(self._head) and re.fullmatch(rb"\d*(\d\])?", number)
        return len(part) if begun or self._head.startswith(part) else 0


class Reports:
    """Takes the lines out of a rank's output that are meant for the supervisor."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> tuple[bytes, list[str]]:
        """The rank's own words, and whole lines for the supervisor."""
        data = self._held + data
        own, lines = b"", []
        while True:
            found = [at for marker in MARKERS if (at := data.find(marker)) >= 0]
            start = min(found, default=-1)
            end = data.find(b"\n", start) + 1 if found else 0
            if not end:
                break
            own += data[:start]
            lines.append(data[start:end].decode(errors="replace"))
            data = data[end:]
        keep = len(data) - start if found else max(_overlap(data, marker) for marker in MARKERS)
        cut = len(data) - keep
        self._held = data[cut:]
        return own + data[:cut], lines

    def close(self) -> bytes:
        """What has waited for the rest of a line that did not come."""
        held, self._held = self._held, b""
        return held


def _overlap(text: bytes, marker: bytes) -> int:
    """How many bytes at the end of the text are the beginning of the marker."""
    for count in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:count]):
            return count
    return 0


def read_end(line: str) -> RankEnd | None:
    """The inverse of `RankEnd.line`; None for any other line."""
    _, marker, text = line.partition(END_MARKER)
    try:
        return RankEnd(**json.loads(text)) if marker else None
    except (ValueError, TypeError):
        return None


class RankOutput:
    """Keeps what each rank says in logs/rank-N.log, and tells on what rank 0 says.

    Args:
        logs: the folder for the logs.
        run: the run's id.
        tell: called with stream and text of rank 0.
        clock: seconds.
    """

    def __init__(
        self,
        logs: Path,
        run: str,
        tell: Callable[[Stream, str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ends: list[RankEnd] = []
        self.errors: list[dict[str, object]] = []
        self._logs = logs
        self._tell = tell
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
        self._reports: dict[tuple[int | None, Stream], Reports] = {}
        self._last: dict[int | None, bytes] = {}
        self._untold: list[tuple[Stream, str]] = []
        self._told = clock()
        logs.mkdir(exist_ok=True)

    @property
    def failure(self) -> RankEnd | None:
        """The rank that failed first."""
        return next((end for end in self.ends if end.code), None)

    @property
    def heard(self) -> list[int]:
        """The ranks that have said something."""
        return sorted(rank for rank in self._last if rank is not None)

    def feed(self, stream: Stream, data: bytes) -> None:
        """Take what mpirun has said."""
        self._keep(stream, self._splitters[stream].feed(data))

    def tell_on(self, at_once: bool = False) -> None:
        """Tell what rank 0 has said since the last time, if that is some time ago."""
        now = self._clock()
        size = sum(len(text) for _, text in self._untold)
        due = at_once or now - self._told >= TELL_SECONDS or size >= TELL_CHARACTERS
        if not due or not self._untold:
            return
        self._told = now
        untold, self._untold = self._untold, []
        for stream, text in _joined(untold):
            for start in range(0, len(text), TELL_CHARACTERS):
                self._tell(stream, text[start : start + TELL_CHARACTERS])

    def close(self) -> None:
        """Nothing more will come."""
        for stream, splitter in self._splitters.items():
            self._keep(stream, splitter.close())
        for (rank, stream), reports in self._reports.items():
            self._words(rank, stream, reports.close())
        for stream, decoder in self._decoders.items():
            rest = decoder.decode(b"", final=True)
            if rest:
                self._untold.append((stream, rest))
        self.tell_on(at_once=True)

    def last_words(self, rank: int | None) -> str:
        """The last lines of a rank, or of mpirun itself; of a progress bar its last state."""
        text = self._last.get(rank, b"").decode(errors="replace")
        lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
        return "\n".join([line.rstrip() for line in lines if line.strip()][-LAST_LINES:])

    def killed(self) -> RankEnd | None:
        """A rank of which mpirun says that a signal has killed it."""
        found = BANNER.search(self._last.get(None, b"").decode(errors="replace"))
        if not found:
            return None
        number = int(found[3])
        return RankEnd(int(found[1]), found[2], 128 + number, signal_name(number))

    def _keep(self, stream: Stream, pieces: list[tuple[int | None, bytes]]) -> None:
        gathered: dict[int | None, bytes] = {}
        for rank, data in pieces:
            gathered[rank] = gathered.get(rank, b"") + data
        for rank, data in gathered.items():
            own, lines = self._reports.setdefault((rank, stream), Reports()).feed(data)
            self._words(rank, stream, own)
            for line in lines:
                self._report(line)

    def _report(self, line: str) -> None:
        end, error = read_end(line), read_error_line(line)
        if end:
            self.ends.append(end)
        if error:
            self.errors.append(error)

    def _words(self, rank: int | None, stream: Stream, data: bytes) -> None:
        if not data:
            return
        self._last[rank] = (self._last.get(rank, b"") + data)[-LAST_BYTES:]
        name = "mpirun.log" if rank is None else f"rank-{rank}.log"
        with contextlib.suppress(OSError), (self._logs / name).open("ab") as file:  # disk full
            file.write(data)
        if rank == 0:
            self._untold.append((stream, self._decoders[stream].decode(data)))


def signal_name(number: int) -> str:
    """SIGKILL for 9; a real-time signal has only a number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _joined(pieces: list[tuple[Stream, str]]) -> list[tuple[Stream, str]]:
    """Neighbours of the same stream as one."""
    joined: list[tuple[Stream, str]] = []
    for stream, text in pieces:
        if joined and joined[-1][0] == stream:
            joined[-1] = (stream, joined[-1][1] + text)
        else:
            joined.append((stream, text))
    return joined
