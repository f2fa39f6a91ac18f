"""What the guardians report to the supervisor, and which rank or host is in trouble.

A guardian (see `guardian`) connects and sends the run's secret and its rank, as `hello_of` writes
them, and the supervisor answers with `beat`. From then on the guardian sends lines of JSON: each
second the `activity` of its rank, with `step` and `doing` as the rank has reported them, and of a
host's first rank sometimes also `host`, the `HostCondition`; last `exit` and `oom`. The supervisor
sends a line a second, `beat`, or `end`, `stop` or `stack`.

Everybody who reaches the port may connect. Nothing of a connection is parsed before its first bytes
are the secret, and who has not sent it is hung up on: after GREETING_SECONDS, or earlier when too
many wait.

Standard library only: the supervisor uses it.
"""

import contextlib
import math
import selectors
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ftcluster_common.launch import Host
from ftcluster_common.timeouts import BEAT_SECONDS, Timeouts
from ftcluster_train.host.messages import LINE_LIMIT, rank_of, read_report
from ftcluster_train.host.mpi_output import signal_name
from ftcluster_train.io.rank_status import SCRIPT

BACKLOG = 4096  # connections that wait to be accepted; net.core.somaxconn is a limit of it
GREETING_SECONDS = 5.0  # from a connection to the secret
UNGREETED = 256  # connections that have not sent the secret; a process may open 1024 files
SAY_SECONDS = 60.0  # between two lines of the log about strangers
TCP_INFO_BYTES = 8 + 13 * 4  # see _seconds_since_ack
IDLE_CPU = 0.02  # share of a core below which a rank waits
IDLE_WIRE = 1000.0  # bytes a second below which it waits
STARVED = 3  # a thread that wakes up now and then is not seen awake so often in a row
WINDOW_SECONDS = 10.0  # CPU and wire are means over this long at most
STOPPED_HINT = "find out who sends SIGSTOP on that host"
ASLEEP_HINT = "a disk or network file system of that host does not answer: dmesg there"
WRITES_OR_READS = ("starting", "loading", "saving")  # in which a slow disk makes a rank sleep long
ORDER = ("starting", "loading", "forward", "all-reduce", "evaluating", "saving")


@dataclass
class RankLife:
    """What is known of one rank.

    Attributes:
        rank: from 0.
        host: the inventory's name of its host.
        address: the address that the head reaches the host by.
        heard: when its guardian was last heard, in the supervisor's seconds; None: never.
        acked: when the kernel of its host last acknowledged what was sent to the guardian.
        step: the optimizer step that it is in.
        doing: what it does: starting, loading, forward, all-reduce, evaluating, saving, script.
        changed: when `step` or `doing` was last another one, or when it ended.
        stopped: since when it is stopped (state T); None: it is not.
        sleep: in which it is uninterruptible (state D), see `activity.sleep_of`; None: in none.
        asleep: when it was first seen in that sleep.
        cpu: CPU seconds that its processes have used, at `since`.
        wire: bytes that they have sent and received, at `since`.
        since: when the window began over which `cpu` and `wire` are compared.
        busy: when it was last seen to use its CPU, a disk or the network, or to want a CPU.
        starved: messages one after the other in which it wanted a CPU.
        exit: its exit code, negative for a signal; None while it is there.
        oom: whether the kernel has killed it for want of memory.
        lost: whether its guardian hung up without an exit code.
        condition: what its host was like lately, see `HostCondition.read`; {} where it is not the
            first rank of its host.
    """

    rank: int
    host: str
    address: str
    heard: float | None = None
    acked: float = -math.inf
    step: int = 0
    doing: str = "starting"
    changed: float = 0.0
    stopped: float | None = None
    sleep: Sequence[Any] | None = None
    asleep: float = 0.0
    cpu: float = 0.0
    wire: int = 0
    since: float = 0.0
    busy: float = 0.0
    starved: int = 0
    exit: int | None = None
    oom: bool = False
    lost: bool = False
    condition: Mapping[str, Any] = field(default_factory=dict)

    def take(self, message: Mapping[str, Any], now: float) -> None:
        """Fold one message of the guardian in."""
        self.heard = now
        if "exit" in message:
            self.exit, self.oom = int(message["exit"]), bool(message.get("oom"))
            self.changed = now
            return
        where = (int(message.get("step", self.step)), str(message.get("doing", self.doing)))
        if where != (self.step, self.doing):
            (self.step, self.doing), self.changed, self.busy = where, now, now
        self.condition = message.get("host", self.condition)
        state = message.get("state")
        self.stopped = (self.stopped or now) if state == "T" else None
        if message.get("sleep") != self.sleep:
            self.sleep, self.asleep = message.get("sleep"), now
        cpu, wire = float(message.get("cpu", self.cpu)), int(message.get("wire", self.wire))
        window = max(now - self.since, BEAT_SECONDS)
        used, moved = (cpu - self.cpu) / window, abs(wire - self.wire) / window
        self.starved = self.starved + 1 if state == "R" else 0
        if used > IDLE_CPU or moved > IDLE_WIRE or state == "D" or self.starved >= STARVED:
            self.busy = now
        if self.busy == now or window >= WINDOW_SECONDS:
            self.cpu, self.wire, self.since = cpu, wire, now


@dataclass(frozen=True)
class Trouble:
    """Something that a run does not survive.

    Attributes:
        rank: the rank, or None where it is the whole host.
        cause: signal, oom, exit, stopped, asleep, host or hung.
    """

    host: str
    rank: int | None
    step: int
    cause: str
    message: str
    hint: str = ""


def find_trouble(
    lives: Sequence[RankLife],
    now: float,
    timeouts: Timeouts,
    hang_seconds: float | None = None,
) -> list[Trouble]:
    """What is wrong with the ranks; the cause first, not those that wait for it.

    Args:
        now: the supervisor's seconds.
        hang_seconds: how long no rank may do anything; 0: for ever; None: `silence`.
    """
    dead = [one for one in lives if one.exit not in (None, 0)]
    killed = [one for one in dead if one.oom or (one.exit or 0) < 0]
    if killed:  # the others ended because one was gone
        return [_ended(one) for one in killed]
    # those that end by themselves say why, and the others soon end as well
    if dead and now - min(one.changed for one in dead) > timeouts.last_words:
        return [_ended(one) for one in dead]
    if dead:
        return []
    late = [one for one in lives if one.heard is None]
    if late and now - late[0].changed > timeouts.start:
        return [_trouble(one, "host", "not started by mpirun") for one in late]
    known = [one for one in lives if one.heard is not None and one.exit is None]
    silent = [one for one in known if now - (one.heard or 0) > timeouts.silence or one.lost]
    if silent:
        return _silent(silent, lives, now - timeouts.silence / 2)
    stopped = [
        one for one in known if one.stopped is not None and now - one.stopped > timeouts.stopped
    ]
    if stopped:
        return [_trouble(one, "stopped", "stopped (SIGSTOP)", STOPPED_HINT) for one in stopped]
    asleep = [
        one
        for one in known
        if one.sleep and now - one.asleep > _longest_sleep(one, timeouts, hang_seconds)
    ]
    if asleep:
        return [_asleep(one) for one in asleep]
    limit = timeouts.silence if hang_seconds is None else hang_seconds
    if any(one.doing == "starting" for one in known):
        limit = max(limit, timeouts.start)
    return [] if late or hang_seconds == 0 else _hung(known, now, limit)


def _ended(one: RankLife) -> Trouble:
    code = one.exit or 0
    if one.oom:
        what = "killed by the kernel: the host is out of memory"
        return _trouble(one, "oom", what, "lower batch_size or raise gradient_accumulation_steps")
    if code < 0:
        return _trouble(one, "signal", f"killed by signal {-code} ({signal_name(-code)})")
    return _trouble(one, "exit", f"ended with exit code {code}")


def _silent(silent: Sequence[RankLife], lives: Sequence[RankLife], acked: float) -> list[Trouble]:
    """A host whose kernel has acknowledged nothing since `acked` is lost."""
    found = []
    for host in dict.fromkeys(one.host for one in silent):
        there = [one for one in lives if one.host == host]
        gone = [one for one in silent if one.host == host]
        up = all(one.lost for one in gone) or any(one.acked > acked for one in gone)
        if len(gone) == len(there) and not up:
            message = f"{host} ({gone[0].address}) was lost{_at_step(gone[0])}: no answer"
            hint = "check that it is on and that the head reaches it: ftcluster check"
            found.append(Trouble(host, None, gone[0].step, "host", message, hint))
        else:
            hint = f"if {host} was rebooted, it is used again when it answers"
            found += [
                _trouble(one, "signal", "its guardian process was killed", hint)
                if one.lost
                else _trouble(one, "stopped", "its guardian process does not answer", STOPPED_HINT)
                for one in gone
            ]
    return found


def _longest_sleep(one: RankLife, timeouts: Timeouts, hang_seconds: float | None) -> float:
    """Seconds that a rank may be in one uninterruptible sleep."""
    if hang_seconds is not None:
        return hang_seconds or math.inf
    return timeouts.start if one.doing in WRITES_OR_READS else timeouts.silence


def _asleep(one: RankLife) -> Trouble:
    function = f", {one.sleep[2]}" if one.sleep and one.sleep[2] else ""
    return _trouble(one, "asleep", f"waits in the kernel (state D{function})", ASLEEP_HINT)


def _hung(known: Sequence[RankLife], now: float, limit_seconds: float) -> list[Trouble]:
    """Where no rank has done anything for a while, those that are the farthest behind.

    Where none is behind, the one that has done nothing for longest; all ranks of a script in that
    order, which do not report where they are.
    """
    idle = {one.rank: max(one.busy, one.changed) for one in known}
    if not known or now - max(idle.values()) <= limit_seconds:
        return []
    first = min(map(_place, known))
    behind = [one for one in known if _place(one) == first]
    ordered = sorted(known, key=lambda one: idle[one.rank])
    scripts = all(one.doing == SCRIPT for one in known)
    named = behind if len(behind) < len(known) else ordered if scripts else ordered[:1]
    what = f"no rank has used its CPU, a disk or the network for {limit_seconds:g} s"
    return [
        _trouble(
            one,
            "hung",
            f"hung in {one.doing}: {what}",
            f"its Python stacks: ftcluster logs --rank {one.rank}",
        )
        for one in named
    ]


def _place(one: RankLife) -> tuple[int, int]:
    return one.step, ORDER.index(one.doing) if one.doing in ORDER else 0


def _trouble(one: RankLife, cause: str, what: str, hint: str = "") -> Trouble:
    return Trouble(one.host, one.rank, one.step, cause, f"{what}{_at_step(one)}", hint)


def _at_step(one: RankLife) -> str:
    return "" if one.doing == SCRIPT else f" at step {one.step}"


@dataclass(eq=False)
class _Connection:
    socket: socket.socket
    address: str
    since: float
    rest: bytes = b""
    life: RankLife | None = None


def _seconds_since_ack(connection: socket.socket) -> float:
    """For how long the other end's kernel has acknowledged nothing.

    tcpi_last_ack_recv, in ms, of struct tcp_info (Linux, include/uapi/linux/tcp.h): after 8 fields
    of a byte the 13th of 4 bytes.
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
        secret: what guardians prove themselves with.
        hosts: the host of each rank.
        now: the supervisor's seconds.
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
        # in the order in which they came
        self._ungreeted: dict[_Connection, None] = {}
        self._guardians: dict[_Connection, None] = {}
        self._strangers, self._say_at = 0, now
        self._sent = self._polled = now
        self._stopped = 0.0  # for how long the supervisor has not come to poll

    @property
    def listens_at(self) -> str:
        """Where guardians connect, address:port."""
        host, port = self._listener.getsockname()[:2]
        return f"{host}:{port}"

    def poll(self, now: float) -> None:
        """Take what has come, and send a beat a second; never waits."""
        self._stopped, self._polled = max(self._stopped, now - self._polled), now
        for key, _ in self._selector.select(0):
            if key.data is None:
                self._accept(now)
            elif key.data.socket.fileno() >= 0:  # else it has made room for another one
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
        """What is wrong with the ranks, see `find_trouble`, or was with the supervisor."""
        if self._stopped > self._timeouts.supervisor:  # the guardians have ended their ranks
            first = max(self.lives, key=lambda one: one.step)
            what = f"the supervisor was stopped for {self._stopped:.0f} s"
            hint = "find out who sends SIGSTOP on that host, or suspends it"
            message = f"{what}{_at_step(first)}"
            return [Trouble(self.lives[0].host, None, first.step, "stopped", message, hint)]
        return find_trouble(self.lives, now, self._timeouts, self._hang_seconds)

    @property
    def all_done(self) -> bool:
        """Whether all ranks have ended well."""
        return all(one.exit == 0 for one in self.lives)

    def all_gone(self, now: float) -> bool:
        """Whether no rank is left that the supervisor hears of."""
        oldest = now - self._timeouts.silence
        return all(
            one.exit is not None or one.lost or (one.heard or oldest) <= oldest
            for one in self.lives
        )

    def send(self, line: bytes) -> None:
        """Send a line to every guardian."""
        for connection in self._guardians:
            with contextlib.suppress(OSError):
                connection.socket.send(line)

    def close(self) -> None:
        """Hang up: every guardian that is left ends its rank."""
        for connection in (*self._guardians, *self._ungreeted):
            connection.socket.close()
        self._listener.close()
        self._selector.close()

    def _accept(self, now: float) -> None:
        """Take all that wait, and of each what it has sent: a guardian says hello at once."""
        for _ in range(BACKLOG):  # strangers may come faster than they are hung up on
            try:
                peer, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # it is gone again, or there are too many files
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
        """Take a connection's first line: whose guardian it is.

        Raises:
            ValueError: it is none.
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
        """Hang up on somebody who is no guardian; the log says so now and then."""
        self._strangers += 1
        if now >= self._say_at:
            self._say_at = now + SAY_SECONDS
            print(
                f"hung up on {connection.address}, which does not have the run's secret; so far on "
                f"{self._strangers} connections of strangers",
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
