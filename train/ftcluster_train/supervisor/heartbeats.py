"""The supervisor's end of the connections to the ranks' guardians, and requests to stop.

A guardian (see `guardian`) connects and sends the run's secret and its rank, as `hello_of` writes
them. The supervisor answers with `beat`. From then on the guardian sends lines of JSON:

- each second the `activity` of its rank, with `step` and `doing` as the rank has reported them;
- from a host's first rank sometimes also `host`, the `HostCondition`;
- at the end `exit` and `oom`;
- after a signal from outside the run that asks the rank to stop, `signal`, see `Received`.

Each second the supervisor sends a line: `beat`, `end`, `stop` or `stack`.

Anybody who reaches the port may connect. The supervisor parses nothing before it has received the
secret. It closes a connection that has not sent the secret after GREETING_SECONDS, or earlier if
too many wait.

Standard library only.
"""

import contextlib
import math
import selectors
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ftcluster_common.protocol.launch import GRACE_SECONDS, Host
from ftcluster_common.protocol.timeouts import BEAT_SECONDS, Timeouts
from ftcluster_train.io.rank_status import LINE_LIMIT, rank_of, read_report
from ftcluster_train.io.signals import Received, take_signals
from ftcluster_train.supervisor.rank_life import RankLife, Trouble, at_step, find_trouble

BACKLOG = 4096  # connections that wait to be accepted; net.core.somaxconn limits this
GREETING_SECONDS = 5.0  # longest time between a connection and its secret
UNGREETED = 256  # most connections without the secret, because a process can open 1024 files
SAY_SECONDS = 60.0  # between two log lines about strangers
TCP_INFO_BYTES = 8 + 13 * 4  # see _seconds_since_ack
STOPS = (signal.SIGTERM, signal.SIGINT)
STOPPED_EXIT_CODE = 128 + signal.SIGTERM  # exit code of a stopped run


@dataclass(eq=False)
class _Connection:
    socket: socket.socket
    address: str
    since: float
    rest: bytes = b""
    life: RankLife | None = None


def _seconds_since_ack(connection: socket.socket) -> float:
    """Return the seconds since the other end's kernel last acknowledged anything.

    The value is tcpi_last_ack_recv, in ms, of struct tcp_info (Linux, include/uapi/linux/tcp.h):
    the 13th 4-byte field after 8 one-byte fields.
    """
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    except OSError:
        return math.inf
    milliseconds = int.from_bytes(info[-4:], sys.byteorder)
    return milliseconds / 1000


class Heartbeats:
    """The supervisor's end of the guardians' connections.

    Args:
        address: this host's address in the cluster.
        secret: secret that guardians must send first.
        hosts: the host of each rank.
        now: current time on the supervisor's clock, in seconds.
        hang_seconds: see `find_trouble`.
    """

    def __init__(
        self,
        address: str,
        port: int,
        secret: str,
        hosts: Sequence[Host],
        now: float,
        timeouts: Timeouts,
        hang_seconds: float | None = None,
    ) -> None:
        self._timeouts, self._hang_seconds = timeouts, hang_seconds
        self.lives = [
            RankLife(rank, host.name, host.address, changed=now, since=now, busy=now)
            for rank, host in enumerate(hosts)
        ]
        self._secret = secret
        self._selector = selectors.DefaultSelector()
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, port), family=family, backlog=BACKLOG)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        # both in the order of arrival
        self._ungreeted: dict[_Connection, None] = {}
        self._guardians: dict[_Connection, None] = {}
        self._strangers, self._say_at = 0, now
        self._sent = now
        self._polled: float | None = None  # None before the first poll, which may come late
        self._stopped = 0.0  # longest time between two polls, in seconds

    @property
    def listens_at(self) -> str:
        """The address that guardians connect to, as address:port."""
        host, port = self._listener.getsockname()[:2]
        return f"{host}:{port}"

    def poll(self, now: float) -> None:
        """Read the messages that have arrived, and send a beat each second; never wait."""
        if self._polled is not None:
            self._stopped = max(self._stopped, now - self._polled)
        self._polled = now
        for key, _ in self._selector.select(0):
            if key.data is None:
                self._accept(now)
            elif key.data.socket.fileno() >= 0:  # else a newer connection has replaced it
                self._read(key.data, now)
        while self._ungreeted and now - next(iter(self._ungreeted)).since > GREETING_SECONDS:
            self._refuse(next(iter(self._ungreeted)), now)
        if now - self._sent >= BEAT_SECONDS:
            self._sent = now
            self.send(b"beat\n")
            for connection in self._guardians:
                if connection.life:
                    connection.life.acked = now - _seconds_since_ack(connection.socket)

    def trouble(self, now: float) -> list[Trouble]:
        """Return the troubles of the ranks (see `find_trouble`) or of the supervisor itself."""
        if self._stopped > self._timeouts.supervisor:  # the guardians have ended their ranks
            first = max(self.lives, key=lambda live: live.step)
            what = f"the supervisor was stopped for {self._stopped:.0f} s"
            hint = "find out who sends SIGSTOP on that host, or suspends the host"
            message = f"{what}{at_step(first)}"
            return [Trouble(self.lives[0].host, None, first.step, "stopped", message, hint)]
        return find_trouble(self.lives, now, self._timeouts, self._hang_seconds)

    @property
    def all_done(self) -> bool:
        """True if all ranks have ended with exit code 0."""
        return all(live.exit == 0 for live in self.lives)

    def all_gone(self, now: float) -> bool:
        """Return True if every rank has ended, or its guardian is gone or silent."""
        oldest = now - self._timeouts.silence
        return all(
            live.exit is not None or live.lost or (live.heard or oldest) <= oldest
            for live in self.lives
        )

    def send(self, line: bytes) -> None:
        """Send a line to every guardian."""
        for connection in self._guardians:
            with contextlib.suppress(OSError):
                connection.socket.send(line)

    def close(self) -> None:
        """Close all connections: every remaining guardian then ends its rank."""
        for connection in (*self._guardians, *self._ungreeted):
            connection.socket.close()
        self._listener.close()
        self._selector.close()

    def _accept(self, now: float) -> None:
        """Accept all waiting connections; read each at once, as guardians send the secret first."""
        for _ in range(BACKLOG):  # not forever: strangers may connect faster than this loop runs
            try:
                peer, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # the connection is gone again, or too many files are open
                if self._ungreeted:
                    self._refuse(next(iter(self._ungreeted)), now)
                continue
            peer.setblocking(False)
            connection = _Connection(peer, str(address[0]), now)
            self._ungreeted[connection] = None
            self._selector.register(peer, selectors.EVENT_READ, connection)
            self._read(connection, now)
            if len(self._ungreeted) > UNGREETED:
                self._refuse(next(iter(self._ungreeted)), now)

    def _read(self, connection: _Connection, now: float) -> None:
        try:
            data = connection.socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        connection.rest += data
        if connection.life is None:
            try:
                self._greet(connection, now)
            except ValueError:
                self._refuse(connection, now)
                return
        if connection.life is not None:
            *lines, connection.rest = connection.rest.split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError):
                    connection.life.take(read_report(line), now)
        if not data or len(connection.rest) > LINE_LIMIT:
            self._hang_up(connection)

    def _greet(self, connection: _Connection, now: float) -> None:
        """Read a connection's first line, which names the guardian's rank.

        Raises:
            ValueError: the other end is not a guardian.
        """
        rank = rank_of(connection.rest, self._secret)
        if rank is None:
            return
        if rank >= len(self.lives):
            raise ValueError
        connection.rest = connection.rest.partition(b"\n")[2]
        connection.life = self.lives[rank]
        connection.life.heard = now
        del self._ungreeted[connection]
        self._guardians[connection] = None
        with contextlib.suppress(OSError):
            connection.socket.send(b"beat\n")

    def _refuse(self, connection: _Connection, now: float) -> None:
        """Close a stranger's connection; log the refusals at intervals."""
        self._strangers += 1
        if now >= self._say_at:
            self._say_at = now + SAY_SECONDS
            print(
                f"closed a connection from {connection.address}, which did not send the run's "
                f"secret; so far {self._strangers} such connections",
                flush=True,
            )
        self._hang_up(connection)

    def _hang_up(self, connection: _Connection) -> None:
        self._selector.unregister(connection.socket)
        connection.socket.close()
        self._ungreeted.pop(connection, None)
        self._guardians.pop(connection, None)
        if connection.life and connection.life.exit is None:
            connection.life.lost = True


class Stopped(Exception):
    """The run must end at once."""


class StopRequest:
    """A handler of stop signals; the second signal ends the run at once, unless `repeated`.

    Attributes:
        asked: True after the first signal.
        received: first signal and its sender; None if there was no signal.
        at: time of the first signal, in seconds since 1970.
        saving: connections to the ranks, which save before they end; None if the first signal
            ends the run at once.
        grace_seconds: see Launch.
        repeated: True if further signals repeat the same request, and only the grace time ends the
            run.
        holding: True if a signal only sets `asked`: the run has not begun, or is being ended.
    """

    def __init__(self) -> None:
        self.asked = False
        self.received: Received | None = None
        self.at = 0.0
        self.saving: Heartbeats | None = None
        self.grace_seconds = GRACE_SECONDS
        self.repeated = False
        self.holding = True
        self._deadline = float("inf")
        for number in STOPS:
            signal.signal(number, lambda number, _frame: self._take(Received(number)))

    def learn_senders(self) -> None:
        """Handle this process's stop signals in a way that identifies their senders.

        Call this before the process starts threads. Child processes inherit the blocked signals.
        """
        take_signals(STOPS, self._take)

    def check(self) -> None:
        """Raise Stopped if the run was asked to end and must not wait any longer.

        Raises:
            Stopped: the grace time is over, or there are no ranks to wait for.
        """
        if self.asked and (self.saving is None or time.monotonic() > self._deadline):
            raise Stopped

    def _take(self, received: Received) -> None:
        again, self.asked = self.asked, True
        if not again:
            self.received, self.at = received, time.time()
        if self.holding:
            return
        # before the first step there is nothing to save
        ranks = self.saving
        saves = ranks is not None and all(life.step for life in ranks.lives)
        if ranks is None or not saves or (again and not self.repeated):
            self._deadline = -math.inf  # `check` raises again if a fork swallows this exception
            raise Stopped
        if again:
            return
        self._deadline = time.monotonic() + self.grace_seconds
        ranks.send(b"stop\n")
