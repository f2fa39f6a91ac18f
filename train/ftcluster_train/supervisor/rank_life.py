"""The reports of the guardians about each rank, and detection of ranks and hosts in trouble.

Pure functions. Standard library only.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ftcluster_common.protocol.timeouts import BEAT_SECONDS, Timeouts
from ftcluster_train.io.mpi_output import signal_name
from ftcluster_train.io.rank_status import SCRIPT
from ftcluster_train.io.signals import Received

IDLE_CPU = 0.02  # share of a core; a rank that uses less counts as waiting
IDLE_WIRE = 1000.0  # bytes a second; a rank with less traffic counts as waiting
STARVED = 3  # consecutive messages; a rank that rarely runs is not runnable in so many
WINDOW_SECONDS = 10.0  # longest time over which CPU and wire are averaged
STOPPED_HINT = "find out who sends SIGSTOP on that host"
ASLEEP_HINT = "a disk or network file system of that host does not respond: see dmesg there"
WRITES_OR_READS = ("starting", "loading", "saving")  # may sleep for long if a disk is slow
ORDER = ("starting", "loading", "forward", "all-reduce", "evaluating", "saving")


@dataclass
class RankLife:
    """The last known state of one rank.

    All times are in seconds on the supervisor's clock.

    Attributes:
        rank: number of the rank, from 0.
        host: inventory name of the rank's host.
        address: address of the host, as seen from the head.
        heard: time of the guardian's last message; None if there was no message.
        acked: time when the host's kernel last acknowledged data sent to the guardian.
        step: optimizer step that the rank is in.
        doing: activity of the rank: starting, loading, forward, all-reduce, evaluating, saving,
            script.
        changed: time when `step` or `doing` last changed, or when the rank ended.
        stopped: time since which the rank is stopped (state T); None if it is not stopped.
        sleep: uninterruptible sleep of the rank (state D), see `activity.sleep_of`; None if the
            rank is not in this state.
        asleep: time when the supervisor first saw the rank in this `sleep`.
        cpu: CPU seconds that the rank's processes had used at `since`.
        memory: most bytes of memory that the processes have occupied at once.
        wire: bytes that the processes had sent and received at `since`.
        since: start of the window over which `cpu` and `wire` are compared.
        busy: time when the rank was last seen to use its CPU, a disk or the network, or to wait for
            a CPU.
        starved: number of consecutive messages in which the rank waited for a CPU.
        exit: exit code, negative for a signal; None while the rank runs.
        oom: True if the kernel has killed the rank because memory was short.
        lost: True if the guardian has closed its connection without an exit code.
        condition: recent condition of the host, see `HostCondition.read`; {} if the rank is not the
            host's first rank.
        received: first stop signal from outside the run to the rank or its guardian; None if
            there was no signal.
        signalled: time of this signal.
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
    memory: int = 0
    wire: int = 0
    since: float = 0.0
    busy: float = 0.0
    starved: int = 0
    exit: int | None = None
    oom: bool = False
    lost: bool = False
    condition: Mapping[str, Any] = field(default_factory=dict)
    received: Received | None = None
    signalled: float = 0.0

    def take(self, message: Mapping[str, Any], now: float) -> None:
        """Update the state with one message of the guardian."""
        self.heard = now
        if "signal" in message:
            self.signalled = self.signalled or now
            self.received = Received(**message["signal"])
            if message.keys() == {"signal"}:
                return
        if "exit" in message:
            self.exit, self.oom = int(message["exit"]), bool(message.get("oom"))
            self.changed = now
            return
        where = (int(message.get("step", self.step)), str(message.get("doing", self.doing)))
        if where != (self.step, self.doing):
            (self.step, self.doing), self.changed, self.busy = where, now, now
        self.condition = message.get("host", self.condition)
        # the value drops when the kernel kills a process
        self.memory = max(self.memory, int(message.get("memory", 0)))
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
    """A problem that ends a run.

    Attributes:
        rank: number of the rank, or None if the whole host is in trouble.
        cause: signal, oom, exit, stopped, asleep, host, hung or link.
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
    """Return the troubles that started a failure, without ranks that only wait for others.

    Args:
        now: current time on the supervisor's clock, in seconds.
        hang_seconds: longest time for which all ranks may be idle; 0 means unlimited, None means
            `timeouts.silence`.
    """
    dead = [life for life in lives if life.exit not in (None, 0)]
    killed = [life for life in dead if life.oom or (life.exit or 0) < 0]
    if killed:  # all other ranks ended because these were gone
        return [_ended(life) for life in killed]
    # ranks that end by themselves report why, and the others soon end too
    if dead and now - min(life.changed for life in dead) > timeouts.last_words:
        return [_ended(life) for life in dead]
    if dead:
        return []
    late = [life for life in lives if life.heard is None]
    if late and now - late[0].changed > timeouts.start:
        return [_trouble(life, "host", "not started by mpirun") for life in late]
    running = [life for life in lives if life.heard is not None and life.exit is None]
    silent = [life for life in running if now - (life.heard or 0) > timeouts.silence or life.lost]
    if silent:
        return _silent(silent, lives, now - timeouts.silence / 2)
    stopped = [
        life
        for life in running
        if life.stopped is not None and now - life.stopped > timeouts.stopped
    ]
    if stopped:
        return [_trouble(life, "stopped", "stopped (SIGSTOP)", STOPPED_HINT) for life in stopped]
    asleep = [
        life
        for life in running
        if life.sleep and now - life.asleep > _longest_sleep(life, timeouts, hang_seconds)
    ]
    if asleep:
        return [_asleep(life) for life in asleep]
    limit = timeouts.silence if hang_seconds is None else hang_seconds
    if any(life.doing == "starting" for life in running):
        limit = max(limit, timeouts.start)
    return [] if late or hang_seconds == 0 else _hung(running, now, limit)


def out_of_memory(lives: Sequence[RankLife]) -> list[Trouble]:
    """Return the trouble of the rank that the kernel has killed first to free memory, if any.

    The launcher then kills the other ranks, which may look as if the kernel had killed them too.
    """
    killed = sorted((life for life in lives if life.oom), key=lambda life: life.changed)
    return [_ended(life) for life in killed[:1]]


def _ended(life: RankLife) -> Trouble:
    code = life.exit or 0
    if life.oom:
        used = f" (this rank used up to {life.memory / 1e9:.1f} GB)" if life.memory else ""
        what = f"killed by the kernel: the host is out of memory{used}"
        return _trouble(life, "oom", what, "lower batch_size or raise gradient_accumulation_steps")
    if code < 0:
        return _trouble(life, "signal", f"killed by signal {-code} ({signal_name(-code)})")
    return _trouble(life, "exit", f"ended with exit code {code}")


def _silent(silent: Sequence[RankLife], lives: Sequence[RankLife], since: float) -> list[Trouble]:
    """Return troubles for silent ranks.

    A host is lost if neither a guardian nor the kernel there has answered after `since`. The
    trouble names the first of its ranks that has been silent for too long.
    """
    trouble = []
    for host in dict.fromkeys(life.host for life in silent):
        there = [life for life in lives if life.host == host and life.exit is None]
        gone = [life for life in silent if life.host == host]
        last_sign = max(max(life.acked, life.heard or -math.inf) for life in there)
        if last_sign <= since and not all(life.lost for life in gone):
            message = f"{host} ({gone[0].address}) was lost{at_step(gone[0])}: no answer"
            hint = "check that it is on and that the head reaches it: ftcluster check"
            trouble.append(Trouble(host, None, gone[0].step, "host", message, hint))
        else:
            hint = f"if {host} was rebooted, it is used again when it answers"
            trouble += [
                _trouble(life, "signal", "its guardian process was killed", hint)
                if life.lost
                else _trouble(life, "stopped", "its guardian process does not answer", STOPPED_HINT)
                for life in gone
            ]
    return trouble


def _longest_sleep(life: RankLife, timeouts: Timeouts, hang_seconds: float | None) -> float:
    """Return how many seconds a rank may stay in one uninterruptible sleep."""
    if hang_seconds is not None:
        return hang_seconds or math.inf
    return timeouts.start if life.doing in WRITES_OR_READS else timeouts.silence


def _asleep(life: RankLife) -> Trouble:
    function = f", {life.sleep[2]}" if life.sleep and life.sleep[2] else ""
    return _trouble(life, "asleep", f"waits in the kernel (state D{function})", ASLEEP_HINT)


def _hung(running: Sequence[RankLife], now: float, limit_seconds: float) -> list[Trouble]:
    """Return the ranks that are farthest behind if no rank has been active for the limit.

    If no rank is behind, return the rank that has been idle for longest. Ranks of a script do not
    report their step, so return all of them, the longest idle first.
    """
    idle = {life.rank: max(life.busy, life.changed) for life in running}
    if not running or now - max(idle.values()) <= limit_seconds:
        return []
    first = min(map(_place, running))
    behind = [life for life in running if _place(life) == first]
    ordered = sorted(running, key=lambda life: idle[life.rank])
    scripts = all(life.doing == SCRIPT for life in running)
    named = behind if len(behind) < len(running) else ordered if scripts else ordered[:1]
    what = f"no rank has used its CPU, a disk or the network for {limit_seconds:g} s"
    return [
        _trouble(
            life,
            "hung",
            f"hung in {life.doing}: {what}",
            f"its Python stacks: ftcluster logs --rank {life.rank}",
        )
        for life in named
    ]


def idle_seconds(lives: Sequence[RankLife], now: float) -> float:
    """Return for how many seconds no rank has been active; 0 before all have started or at the end.

    Args:
        now: current time on the supervisor's clock, in seconds.
    """
    if any(life.heard is None or life.exit is not None for life in lives):
        return 0.0
    return now - max(max(life.busy, life.changed) for life in lives)


def _place(life: RankLife) -> tuple[int, int]:
    return life.step, ORDER.index(life.doing) if life.doing in ORDER else 0


def _trouble(life: RankLife, cause: str, what: str, hint: str = "") -> Trouble:
    return Trouble(life.host, life.rank, life.step, cause, f"{what}{at_step(life)}", hint)


def at_step(life: RankLife) -> str:
    """Return a message's ending that names a rank's step; "" for a script, which reports none."""
    return "" if life.doing == SCRIPT else f" at step {life.step}"
