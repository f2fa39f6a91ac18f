"""Detection of hosts that fall behind during training, with the likely reasons.

A host's time is the work time of its slowest rank in a step: the other ranks wait for that rank.
Standard library only.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median, median_low
from typing import Any

from ftcluster_common.protocol.rank_times import Interval, interval_between
from ftcluster_train.io.events import EventTail, EventWriter
from ftcluster_train.supervisor.rank_life import RankLife

SLOWER = 1 / 0.85  # 15 % fewer steps per second than other hosts, or than earlier
WINDOW_SECONDS = 30.0  # length of the windows that are compared
WINDOWS = 2  # number of consecutive slow windows after which a host is reported
LEAST_EARLIER = 3  # earlier windows that a comparison of a host with itself needs
LOOK_SECONDS = 5.0
STOLEN, SLOW_CLOCK = 0.03, 0.9  # the same limits as in a check, see `health.outliers`
SWAP = 1e6  # bytes a second


@dataclass(frozen=True)
class Behind:
    """A host that has become slow, or that has recovered.

    Attributes:
        step: last step of the measured window.
        seconds: work time per step of the host's slowest rank, in seconds.
        usual: time in seconds that `seconds` is compared with.
        others: True if `usual` is the median of the other hosts; False if `usual` comes from
            earlier steps of this host.
        ratio: `seconds` / `usual`; 0 if the host is not slow any more.
    """

    host: str
    step: int
    seconds: float
    usual: float
    others: bool
    ratio: float


@dataclass
class _Host:
    slow: int = 0  # number of slow windows in a row
    fast: int = 0
    named: bool = False
    # times of windows without a slow host, relative to the other hosts' time or to the tokens
    earlier: list[float] = field(default_factory=list)


class SlowHosts:
    """A comparison of a run's hosts, window by window.

    Args:
        hosts: the host of each rank.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        self._of_rank = list(hosts)
        self._hosts = {name: _Host() for name in hosts}
        self._window: list[Interval] = []

    def add(self, interval: Interval) -> list[Behind]:
        """Add the next steps; return hosts that have become slow or have recovered."""
        if len(interval.ranks) != len(self._of_rank):
            return []
        self._window.append(interval)
        if sum(part.seconds for part in self._window) < WINDOW_SECONDS:
            return []
        window, self._window = self._window, []
        steps = sum(part.steps for part in window)
        seconds = dict.fromkeys(self._hosts, 0.0)
        for rank, name in enumerate(self._of_rank):
            work = sum(part.ranks[rank].work for part in window) / steps
            seconds[name] = max(seconds[name], work)
        if not all(seconds.values()):  # a clock was set back
            return []
        tokens = max(1, sum(part.tokens for part in window)) / steps
        return list(self._judge(seconds, tokens, window[-1].step))

    def _judge(self, seconds: Mapping[str, float], tokens: float, step: int) -> Iterator[Behind]:
        relative, compared = {}, {}
        for name, host in self._hosts.items():
            rest = [other for other_name, other in seconds.items() if other_name != name]
            # batches differ in length, but equally for all hosts
            now = seconds[name] / (median_low(rest) if rest else tokens)
            alone = now / median(host.earlier) if len(host.earlier) >= LEAST_EARLIER else 0.0
            beside = now if rest else 0.0
            ratio = max(beside, alone)
            relative[name] = now
            usual = seconds[name] / ratio if ratio else seconds[name]
            compared[name] = Behind(name, step, seconds[name], usual, beside >= alone, ratio)
        slow = {name for name, behind in compared.items() if behind.ratio >= SLOWER}
        for name, host in self._hosts.items():
            host.slow, host.fast = (host.slow + 1, 0) if name in slow else (0, host.fast + 1)
            if not slow:  # a slow host would make all other hosts look fast
                host.earlier.append(relative[name])
            if host.slow >= WINDOWS and not host.named:
                host.named = True
                yield compared[name]
            elif host.fast >= WINDOWS and host.named:
                host.named = False
                yield replace(compared[name], ratio=0.0)


def message_of(
    behind: Behind, condition: Mapping[str, Any], others: Sequence[Mapping[str, Any]]
) -> str:
    """Return the message for users about a slow or recovered host.

    Args:
        condition: `HostCondition` of this host; {} if it is not known.
        others: `HostCondition` of the other hosts.
    """
    if not behind.ratio:
        return f"{behind.host} is as fast as before again, at step {behind.step}"
    beside = "on the other hosts" if behind.others else "in its own earlier steps"
    compared = f"{behind.seconds:.2f} s of work per step, {behind.usual:.2f} s {beside}"
    wait = "; all others wait for it" if others else ""
    reasons = "; ".join(_reasons(condition, others)) or "no cause was found on it"
    return f"{behind.host} is {1 - 1 / behind.ratio:.0%} slower ({compared}{wait}): {reasons}"


def _reasons(condition: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not condition:
        return
    if programs := condition["programs"]:
        named = ", ".join(
            f"{name} (process {pid}, {cores:g} cores)" for name, pid, cores in programs
        )
        yield f"other programs run on it: {named}"
    if condition["throttled"]:
        times = condition["throttled"]
        yield f"its CPU was throttled because of heat, {times} times: check its fans"
    clocks = [other["mhz"] for other in others if other["mhz"]]
    if condition["mhz"] and clocks and condition["mhz"] < SLOW_CLOCK * median(clocks):
        yield f"it runs at {condition['mhz']} MHz, the others at {median(clocks):.0f}"
    if condition["stolen"] > STOLEN:
        yield f"the hypervisor gives {condition['stolen']:.0%} of its CPU time to others"
    if condition["swap"] > SWAP:
        yield f"it reads {condition['swap'] / 1e6:.0f} MB/s from swap: its memory is short"


class SlowHostWatch:
    """A reader of a run's events that reports slow hosts; it never fails a run.

    Args:
        lives: states of the ranks, as reported by the guardians.
    """

    def __init__(self, run_dir: Path, events: EventWriter, lives: Sequence[RankLife]) -> None:
        self._reader, self._events, self._lives = EventTail(run_dir, from_end=True), events, lives
        self._slow = SlowHosts([live.host for live in lives])
        self._before: Mapping[str, Any] | None = None
        self._looked = time.monotonic()

    def tick(self) -> None:
        """Read the new events unless that has just been done."""
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        with contextlib.suppress(OSError):  # a full disk
            for event in self._reader.read():
                if event["event"] == "communication":
                    self._take(event)

    def _take(self, event: Mapping[str, Any]) -> None:
        before, self._before = self._before, event
        if before is None:
            return  # the first steps are slow on all hosts, for various reasons
        conditions = {life.host: life.condition for life in self._lives if life.condition}
        for behind in self._slow.add(interval_between(before, event)):
            condition = conditions.get(behind.host, {})
            others = [other for name, other in conditions.items() if name != behind.host]
            self._events.write(
                "slow_host",
                host=behind.host,
                step=behind.step,
                ratio=round(behind.ratio, 3),
                message=message_of(behind, condition, others),
            )
