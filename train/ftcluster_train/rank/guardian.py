"""The parent of a rank: reports to the supervisor, and ends the rank if the supervisor is lost.

The program `bind` becomes this process, and the rank is its child. The kernel ends the rank when
its guardian is killed (PR_SET_PDEATHSIG). The guardian ends the rank when the connection to the
supervisor is closed or silent. Therefore, no rank survives, whichever process is killed first. The
messages are lines of JSON, see `heartbeats`.

Imports only the standard library, because every rank waits for these imports.
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
from ftcluster_train.io.signals import Received, take_signals

ADDRESS = "FTCLUSTER_SUPERVISOR"  # address:port of the supervisor
SECRET = "FTCLUSTER_GUARD_FILE"  # file with the run's secret, which a guardian sends first
GRACE_SECONDS = 9.0  # between SIGTERM and SIGKILL; longer than GRACE_SECONDS of `script`
LOOK_SECONDS = 0.1  # interval at which kernels without pidfd check if the rank has ended
# signals within this time count as one request, because a shutdown signals every process
REPEAT_SECONDS = 2.0
CONDITION_SECONDS = 10.0  # between two readings of a host's condition
STACK_SECONDS = 0.02  # pause after each process that writes its stacks, so that stacks do not mix
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # reported with their senders
FORWARDED = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
OOM_COUNTER = Path("/proc/vmstat")


def guard(program: Sequence[str], rank: int) -> int:
    """Run a rank's program to its end; return its exit code, 128+n after signal n.

    Raises:
        TrainError: the supervisor does not respond, or the program cannot be started.
    """
    timeouts = timeouts_of(os.environ)
    secret = Path(os.environ.pop(SECRET))
    connection = connect(os.environ.pop(ADDRESS), secret, rank, timeouts.connect)
    adopt_orphans()  # so that this process can end the rank's remaining children
    ours, theirs = os.pipe()
    os.set_inheritable(theirs, True)
    os.set_blocking(ours, False)
    os.set_blocking(theirs, False)  # a rank never waits for its guardian
    kills, parent = oom_kills(), os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    pid = os.fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        connection.close()
        os.close(ours)
        end_with_parent(signal.SIGKILL, parent)
        os.environ[PROGRESS_VARIABLE] = str(theirs)
        os._exit(execute(program))
    os.close(theirs)
    guardian = _Guardian(connection, pid, ours, timeouts, secret.parent)
    for number in FORWARDED:
        signal.signal(number, lambda number, _frame: guardian.forward(number))
    take_signals(STOPS, guardian.take_stop)
    status = guardian.watch()
    code = os.waitstatus_to_exitcode(status)
    with contextlib.suppress(OSError):
        killed = code in (-signal.SIGKILL, 128 + signal.SIGKILL)  # the rank, or its script
        message = {"exit": code, "oom": killed and oom_kills() > kills, **guardian.stop_signal}
        connection.sendall(json.dumps(message).encode() + b"\n")
    connection.close()
    return code if code >= 0 else 128 - code


def connect(address: str, secret: Path, rank: int, limit_seconds: float) -> socket.socket:
    """Connect to the supervisor; return the connection once it has accepted this guardian.

    Raises:
        TrainError: the supervisor does not respond in time.
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
                    "run ftcluster check, which reports what blocks the connection",
                ) from None
            time.sleep(0.2)


def _greeted(address: tuple[str, int], hello: bytes, limit_seconds: float) -> socket.socket:
    """Return a connection on which the supervisor has responded.

    Raises:
        OSError: there is no response, for example because too many other processes have connected.
    """
    connection = socket.create_connection(address, limit_seconds)
    try:
        connection.sendall(hello)
        if not connection.recv(1, socket.MSG_PEEK):
            raise ConnectionResetError("the supervisor has closed the connection")
    except OSError:
        connection.close()
        raise
    connection.setblocking(False)
    return connection


def open_end(pid: int) -> int | None:
    """Return a descriptor that becomes readable when a child ends; None before Linux 5.3."""
    with contextlib.suppress(OSError):
        return os.pidfd_open(pid)
    return None


def readable(sources: Sequence[Any], wait_seconds: float) -> list[Any]:
    """Return the sources that can be read; sources that are None are ignored.

    The function does not use select(), which does not accept descriptors above 1023: Hydra leaves
    descriptors for all its hosts open.
    """
    waiting, sources_by_number = select.poll(), {}
    for source in sources:
        if source is not None:
            waiting.register(source, select.POLLIN)
            sources_by_number[source if isinstance(source, int) else source.fileno()] = source
    return [sources_by_number[number] for number, _ in waiting.poll(wait_seconds * 1000)]


def execute(program: Sequence[str]) -> int:
    """Replace this process by a program; return an exit code if it cannot be started."""
    try:
        os.execvp(program[0], list(program))
    except OSError as error:
        os.write(2, f"ftcluster: {program[0]} cannot be started: {error.strerror}\n".encode())
    return 127


class _Guardian:
    """Watches one rank until the rank and all its children have ended."""

    def __init__(
        self, connection: socket.socket, pid: int, progress: int, timeouts: Timeouts,
        run_dir: Path,
    ) -> None:  # fmt: skip
        self._connection, self._pid, self._progress = connection, pid, progress
        self._timeouts = timeouts
        self._script = pid  # the process that does the rank's work, if the rank has started one
        self._doing: dict[str, Any] = {}
        self._activity: dict[str, Any] = {}
        self._rest = self._partial_order = b""
        self._heard = self._sent = time.monotonic()
        self._ending = 0.0  # time at which SIGKILL is due; 0: the rank is not being ended
        self._asked = 0.0  # time at which the rank was asked to stop; 0: it was not asked
        self._received: Received | None = None  # first stop signal from outside the run
        # the first stop signal that the rank reports, as a message
        self._reported: dict[str, Any] = {}
        first = os.environ.get("LOCAL_RANK") == "0"
        self._condition = HostCondition(os.getppid(), self._heard, run_dir) if first else None
        self._condition_read = self._heard

    def watch(self) -> int:
        """Watch the rank to its end; return its wait status."""
        end = open_end(self._pid)
        while True:
            # the guardian shares the rank's cores, so it rarely wakes up
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
                self._send({**self._doing, **self._activity, **self._host(now), **self.stop_signal})

    def _host(self, now: float) -> dict[str, Any]:
        """Return the host's condition if it is due (every CONDITION_SECONDS), otherwise {}."""
        due = now - self._condition_read >= CONDITION_SECONDS
        if not (self._condition and due and self._trains):
            return {}
        self._condition_read = now
        return {"host": self._condition.read(now)}

    @property
    def _trains(self) -> bool:
        """True if the rank runs ftcluster's own training, not a user's script."""
        return bool(self._doing) and self._doing["doing"] != SCRIPT

    @property
    def stop_signal(self) -> dict[str, Any]:
        """The first stop signal from outside the run as a message; {} if there was none."""
        return {"signal": self._received.to_dict()} if self._received else self._reported

    def take_stop(self, received: Received) -> None:
        """Report a stop signal that was sent to this process, and forward it to the rank.

        When a host shuts down or a login session ends, SIGHUP follows SIGTERM. SIGHUP is not
        forwarded to ftcluster's own training, because it would prevent training from saving.
        """
        # of several waiting signals, the kernel delivers SIGHUP first
        first = self._received is None or self._received.number == signal.SIGHUP
        if not received.internal and first:
            self._received = received
            self._send(self.stop_signal)  # at once, because mpirun on this host is also ending
        if received.number != signal.SIGHUP or not self._trains:
            self.forward(received.number)

    def forward(self, number: int) -> None:
        """Send the rank a signal; training that is asked to stop twice is ended at once."""
        now = time.monotonic()
        stop = number in (signal.SIGTERM, signal.SIGINT) and self._trains
        again = self._asked and now - self._asked > REPEAT_SECONDS
        if stop and again and SLURM_VARIABLE not in os.environ:  # Slurm repeats its signals
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
        if not data:  # the rank has closed its end of the pipe
            os.close(self._progress)
            self._progress = None  # type: ignore[assignment]
            return
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-LINE_LIMIT:]
        for line in lines:
            with contextlib.suppress(ValueError):
                report = read_report(line)
                if "signal" in report:
                    self._reported = self._reported or {"signal": report["signal"]}
                    continue
                self._script = report.get("pid", self._pid)
                self._doing = {"step": report.get("step", 0), "doing": report.get("doing", SCRIPT)}

    def _take_orders(self, data: bytes) -> None:
        *lines, rest = (self._partial_order + data).split(b"\n")
        self._partial_order = rest[-LINE_LIMIT:]
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
                _signal(pid, signal.SIGCONT)  # a stopped process would not react to SIGTERM
            # after SIGTERM, training would first finish its step
            _signal(self._pid, signal.SIGKILL if self._trains else signal.SIGTERM)

    def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # a supervisor that does not read is also silent
            self._connection.send(json.dumps(message).encode() + b"\n")

    def _end_the_rest(self) -> None:
        """Kill the rank's remaining children, which this process has adopted (subreaper)."""
        for pid in children(os.getpid()):
            _signal(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def oom_kills() -> int:
    """Return the number of processes that the kernel has killed on this host for lack of memory."""
    with contextlib.suppress(OSError):
        for line in OOM_COUNTER.read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
