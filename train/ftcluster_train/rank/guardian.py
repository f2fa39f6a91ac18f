"""The parent of a rank: reports it to the supervisor, and ends it when the supervisor is gone.

`bind` becomes this process, and the rank is its child. The kernel ends the rank when its guardian
is killed (PR_SET_PDEATHSIG), the guardian ends it when the connection to the supervisor is closed
or silent: whatever is killed first, no rank is left. The messages are lines of JSON, see
`heartbeats`.

Standard library only: it is in every rank's way.
"""

import contextlib
import json
import os
import select
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ftcluster_common.protocol.launch import SLURM_VARIABLE
from ftcluster_common.protocol.timeouts import BEAT_SECONDS, Timeouts, timeouts_of
from ftcluster_train.errors import TrainError
from ftcluster_train.io import rank_status
from ftcluster_train.io.activity import HostCondition, activity, children, descendants
from ftcluster_train.io.processes import adopt_orphans, end_with_parent
from ftcluster_train.io.rank_status import (
    LINE_LIMIT,
    PROGRESS_VARIABLE,
    SCRIPT,
    hello_of,
    read_report,
)

ADDRESS = "FTCLUSTER_SUPERVISOR"  # address:port of the supervisor
SECRET = "FTCLUSTER_GUARD_FILE"  # has what a guardian proves itself with
GRACE_SECONDS = 9.0  # between SIGTERM and SIGKILL; longer than that of `script`
LOOK_SECONDS = 0.1  # between two looks whether the rank has ended, where nothing tells
REPEAT_SECONDS = 2.0  # a shutdown signals every process, and so the rank several times
CONDITION_SECONDS = 10.0  # between two readings of a host's condition
STACK_SECONDS = 0.02  # a process writes its stacks meanwhile, so that they do not mix
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
OOM_COUNTER = Path("/proc/vmstat")


def guard(program: Sequence[str], rank: int) -> int:
    """Run a rank's program to its end; returns its exit code, 128+n after signal n.

    Raises:
        TrainError: the supervisor does not answer, or the program cannot be started.
    """
    timeouts = timeouts_of(os.environ)
    secret = Path(os.environ.pop(SECRET))
    connection = connect(os.environ.pop(ADDRESS), secret, rank, timeouts.connect)
    adopt_orphans()  # what the rank leaves behind is ours to end
    ours, theirs = os.pipe()
    os.set_inheritable(theirs, True)
    os.set_blocking(ours, False)
    os.set_blocking(theirs, False)  # a rank never waits for its guardian
    kills, parent = oom_kills(), os.getpid()
    pid = os.fork()
    if pid == 0:
        connection.close()
        os.close(ours)
        end_with_parent(signal.SIGKILL, parent)
        os.environ[PROGRESS_VARIABLE] = str(theirs)
        os._exit(execute(program))
    os.close(theirs)
    guardian = _Guardian(connection, pid, ours, timeouts)
    for number in FORWARDED:
        signal.signal(number, lambda number, _frame: guardian.forward(number))
    status = guardian.watch()
    code = os.waitstatus_to_exitcode(status)
    with contextlib.suppress(OSError):
        killed = code in (-signal.SIGKILL, 128 + signal.SIGKILL)  # the rank, or its script
        message: dict[str, Any] = {"exit": code, "oom": killed and oom_kills() > kills}
        connection.sendall(json.dumps(message).encode() + b"\n")
    connection.close()
    return code if code >= 0 else 128 - code


def connect(address: str, secret: Path, rank: int, limit_seconds: float) -> socket.socket:
    """The connection to the supervisor, which has taken this guardian for one.

    Raises:
        TrainError: it does not answer in time.
    """
    host, _, port = address.rpartition(":")
    hello = hello_of(secret.read_text(encoding="ascii").strip(), rank)
    deadline = time.monotonic() + limit_seconds
    while True:
        try:
            return _greeted((host, int(port)), hello, max(0.1, deadline - time.monotonic()))
        except OSError as error:
            if time.monotonic() > deadline:
                raise TrainError(
                    f"rank {rank} on {socket.gethostname()} cannot reach the supervisor at "
                    f"{address}: {error.strerror or error}",
                    "run ftcluster check: it names what is between the hosts",
                ) from None
            time.sleep(0.2)


def _greeted(address: tuple[str, int], hello: bytes, limit_seconds: float) -> socket.socket:
    """A connection on which hello was answered.

    Raises:
        OSError: there is none, also where too many others have connected meanwhile.
    """
    connection = socket.create_connection(address, limit_seconds)
    try:
        connection.sendall(hello)
        if not connection.recv(1, socket.MSG_PEEK):
            raise ConnectionResetError("it has hung up")
    except OSError:
        connection.close()
        raise
    connection.setblocking(False)
    return connection


def open_end(pid: int) -> int | None:
    """A descriptor that is readable once a child has ended; None: not before Linux 5.3."""
    with contextlib.suppress(OSError):
        return os.pidfd_open(pid)
    return None


def readable(sources: Sequence[Any], wait_seconds: float) -> list[Any]:
    """Those of some sockets and descriptors that can be read; one that is None is left out.

    select() takes no descriptor above 1023, and Hydra leaves those of all its hosts open.
    """
    waiting, found = select.poll(), {}
    for source in sources:
        if source is not None:
            waiting.register(source, select.POLLIN)
            found[source if isinstance(source, int) else source.fileno()] = source
    return [found[number] for number, _ in waiting.poll(wait_seconds * 1000)]


def execute(program: Sequence[str]) -> int:
    """Become a program; returns an exit code where it cannot be started."""
    try:
        os.execvp(program[0], list(program))
    except OSError as error:
        os.write(2, f"ftcluster: {program[0]} cannot be started: {error.strerror}\n".encode())
    return 127


class _Guardian:
    """Watches one rank, until it has ended and all that it has started."""

    def __init__(
        self, connection: socket.socket, pid: int, progress: int, timeouts: Timeouts
    ) -> None:
        self._connection, self._pid, self._progress = connection, pid, progress
        self._timeouts = timeouts
        self._script = pid  # the process that the rank has started to do its work, if it has
        self._doing: dict[str, Any] = {}
        self._activity: dict[str, Any] = {}
        self._rest = self._said = b""
        self._heard = self._sent = time.monotonic()
        self._ending = 0.0  # when SIGKILL is due; 0: it is not being ended
        self._asked = 0.0  # when the rank was asked to stop
        first = os.environ.get("LOCAL_RANK") == "0"
        self._condition = HostCondition(os.getppid(), self._heard) if first else None
        self._condition_read = self._heard

    def watch(self) -> int:
        """Returns the rank's wait status."""
        end = open_end(self._pid)
        while True:
            # it has the rank's cores, and so wakes up seldom
            due = self._sent + BEAT_SECONDS - time.monotonic()
            wait = LOOK_SECONDS if end is None or self._ending else max(0.0, due)
            with contextlib.suppress(InterruptedError):
                for source in readable((self._connection, self._progress, end), wait):
                    if source != end:
                        self._read(source)
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._end_the_rest()
                return status
            now = time.monotonic()
            if now - self._heard > self._timeouts.supervisor:
                self._end(now)
            if self._ending and now > self._ending:
                _signal(self._pid, signal.SIGKILL)
            if now - self._sent >= BEAT_SECONDS:
                self._sent = now
                main = (self._pid, self._script)
                self._activity = activity(os.getpid(), main, self._activity)
                self._send({**self._doing, **self._activity, **self._host(now)})

    def _host(self, now: float) -> dict[str, Any]:
        """What the host is like, now and then, if this is its first rank and it trains."""
        due = now - self._condition_read >= CONDITION_SECONDS
        if not (self._condition and due and self._trains):
            return {}
        self._condition_read = now
        return {"host": self._condition.read(now)}

    @property
    def _trains(self) -> bool:
        """Whether the rank is one of ours and no user's script."""
        return bool(self._doing) and self._doing["doing"] != SCRIPT

    def forward(self, number: int) -> None:
        """Send the rank a signal; a training that is asked to stop once more ends at once."""
        now = time.monotonic()
        stop = number in (signal.SIGTERM, signal.SIGINT) and self._trains
        again = self._asked and now - self._asked > REPEAT_SECONDS
        if stop and again and SLURM_VARIABLE not in os.environ:  # Slurm repeats it
            self._end(now)
            return
        if stop:
            self._asked = self._asked or now
        _signal(self._pid, number)

    def _read(self, source: Any) -> None:
        try:
            data = os.read(source, 65536) if isinstance(source, int) else source.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if source == self._progress:
            self._take_progress(data)
        elif data:
            self._heard = time.monotonic()
            self._take_orders(data)
        else:  # the supervisor has ended, or ends the run
            self._heard = float("-inf")
            time.sleep(0.05)

    def _take_progress(self, data: bytes) -> None:
        if not data:  # the rank has closed it
            os.close(self._progress)
            self._progress = None  # type: ignore[assignment]
            return
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-LINE_LIMIT:]
        for line in lines:
            with contextlib.suppress(ValueError):
                report = read_report(line)
                self._script = report.get("pid", self._pid)
                self._doing = {"step": report.get("step", 0), "doing": report.get("doing", SCRIPT)}

    def _take_orders(self, data: bytes) -> None:
        *lines, said = (self._said + data).split(b"\n")
        self._said = said[-LINE_LIMIT:]
        for line in lines:
            if line == b"end":
                self._end(time.monotonic())
            elif line == b"stop":
                self.forward(signal.SIGTERM)
            elif line == b"stack":
                for pid in descendants(os.getpid()):
                    if rank_status.ask_for_stacks(pid):
                        time.sleep(STACK_SECONDS)

    def _end(self, now: float) -> None:
        if not self._ending:
            self._ending = now + GRACE_SECONDS
            for pid in {self._pid, self._script}:
                _signal(pid, signal.SIGCONT)  # one that is stopped would not see the other
            # a training would stop at its next step
            _signal(self._pid, signal.SIGKILL if self._trains else signal.SIGTERM)

    def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # a supervisor that does not read is silent, too
            self._connection.send(json.dumps(message).encode() + b"\n")

    def _end_the_rest(self) -> None:
        """End what the rank has started and left behind; it is ours now (subreaper)."""
        for pid in children(os.getpid()):
            _signal(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def oom_kills() -> int:
    """How many processes of this host the kernel has killed for want of memory."""
    with contextlib.suppress(OSError):
        for line in OOM_COUNTER.read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
