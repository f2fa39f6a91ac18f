"""What guardians have reported of each rank, and which rank or host is in trouble.

Pure functions. Standard library only: the supervisor uses it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ftcluster_common.timeouts import BEAT_SECONDS, Timeouts
from ftcluster_train.host.mpi_output import signal_name
from ftcluster_train.io.rank_status import SCRIPT

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
    dead = [live for live in lives if live.exit not in (None, 0)]
    killed = [one for one in dead if one.oom or (one.exit or 0) < 0]
    if killed:  # the others ended because one was gone
        return [_ended(one) for one in killed]
    # those that end by themselves say why, and the others soon end as well
    if dead and now - min(one.changed for one in dead) > timeouts.last_words:
        return [_ended(one) for one in dead]
    if dead:
        return []
    late = [live for live in lives if live.heard is None]
    if late and now - late[0].changed > timeouts.start:
        return [_trouble(one, "host", "not started by mpirun") for one in late]
    known = [live for live in lives if live.heard is not None and live.exit is None]
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
        there = [live for live in lives if live.host == host]
        gone = [one for one in silent if one.host == host]
        up = all(one.lost for one in gone) or any(one.acked > acked for one in gone)
        if len(gone) == len(there) and not up:
            message = f"{host} ({gone[0].address}) was lost{at_step(gone[0])}: no answer"
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
    return Trouble(one.host, one.rank, one.step, cause, f"{what}{at_step(one)}", hint)


def at_step(one: RankLife) -> str:
    """The end of a message: at which step a rank is; a script reports none."""
    return "" if one.doing == SCRIPT else f" at step {one.step}"
