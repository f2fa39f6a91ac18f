"""Hosts that become slow during a training."""

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ftcluster_common.protocol.rank_times import Interval, RankTimes
from ftcluster_train.io import activity
from ftcluster_train.io.activity import HostCondition
from ftcluster_train.io.events import EventWriter, read_events
from ftcluster_train.supervisor import slow_hosts
from ftcluster_train.supervisor.rank_life import RankLife
from ftcluster_train.supervisor.slow_hosts import (
    WINDOW_SECONDS,
    Behind,
    SlowHosts,
    SlowHostWatch,
    message_of,
)

STEPS = 10
IDLE = {"mhz": 2600, "throttled": 0, "stolen": 0.0, "swap": 0, "programs": []}


def interval(work: Sequence[float], step: int = 0, tokens: int = 1000) -> Interval:
    """Return a window in which each rank works these seconds per step."""
    ranks = tuple(RankTimes(one * STEPS, 0.0, 0.0, 0.0) for one in work)
    return Interval(step, STEPS, 0.0, WINDOW_SECONDS, ranks, tokens * STEPS, 0.0)


def test_a_host_that_is_slower_than_the_others_is_named_once() -> None:
    slow = SlowHosts(["a", "a", "b", "b", "c", "c"])
    even, late = [1.0, 1.0, 1.1, 1.0, 1.0, 1.0], [1.0, 1.0, 1.1, 1.5, 1.0, 1.0]
    assert slow.add(interval(even)) == []
    assert slow.add(interval(late, 20)) == []  # it may be only a moment
    (found,) = slow.add(interval(late, 30))
    assert found == Behind("b", 30, 1.5, 1.0, True, pytest.approx(1.5))
    assert slow.add(interval(late)) == []
    assert slow.add(interval(even)) == []
    (again,) = slow.add(interval(even, 60))
    assert (again.host, again.ratio) == ("b", 0.0)
    # a short delay, or a difference of a tenth, is not reported
    slow = SlowHosts(["a", "b"])
    for work in ([1.0, 2.0], [1.0, 1.0], [1.0, 2.0], [1.0, 1.1], [1.0, 1.1], [1.0, 1.1]):
        assert slow.add(interval(work)) == []
    # a host that becomes slower than before is reported
    slow = SlowHosts(["old", "new"])
    for _ in range(3):
        assert slow.add(interval([1.0, 0.9])) == []
    found = [slow.add(interval([1.0, 1.08])) for _ in range(2)]
    assert [[one.host for one in window] for window in found] == [[], ["new"]]


def test_a_single_host_is_compared_with_itself_by_tokens() -> None:
    slow = SlowHosts(["a"])
    for tokens in (1000, 2000, 1500, 3000):  # longer batches take longer
        assert slow.add(interval([tokens / 1000], tokens=tokens)) == []
    found = [slow.add(interval([1.3], 70)) for _ in range(2)]
    assert found[0] == []
    (one,) = found[1]
    assert (one.host, one.others, round(one.ratio, 3)) == ("a", False, 1.3)
    # short intervals together make a window
    slow = SlowHosts(["a", "b"])
    ranks = (RankTimes(1.0, 0, 0, 0), RankTimes(2.0, 0, 0, 0))
    third = Interval(1, 1, 0.0, WINDOW_SECONDS / 3 + 0.1, ranks, 10, 0.0)
    assert [bool(slow.add(third)) for _ in range(6)] == [False] * 5 + [True]


def test_what_is_seen_on_the_host_explains_it() -> None:
    found = Behind("b", 30, 1.5, 1.0, True, 1.5)
    own = {
        **IDLE, "mhz": 1400, "throttled": 3, "stolen": 0.2, "swap": 5e6,
        "programs": [["stress", 77, 1.5]],
    }  # fmt: skip
    text = message_of(found, own, [IDLE, IDLE])
    for part in (
        "b is 33% slower", "1.50 s", "1.00 s", "stress (process 77, 1.5 cores)", "1400 MHz",
        "2600", "throttled", "20%", "5 MB/s from swap",
    ):  # fmt: skip
        assert part in text
    assert "no cause was found on it" in message_of(found, IDLE, [IDLE])
    assert "no cause was found on it" in message_of(found, {}, [])
    assert "others wait" not in message_of(found, IDLE, [])


def test_it_becomes_an_event_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = EventWriter(tmp_path)
    lives = [RankLife(0, "a", "10.0.0.1"), RankLife(1, "b", "10.0.0.2")]
    for life in lives:
        life.take({"step": 1, "doing": "forward", "host": IDLE}, 1.0)
    lives[1].take({"host": {**IDLE, "programs": [["hog", 5, 1.0]]}}, 2.0)
    watch = SlowHostWatch(tmp_path, events, lives)
    monkeypatch.setattr(slow_hosts, "LOOK_SECONDS", 0.0)
    watch.tick()  # no event has been written yet
    for number in range(1, 6):
        communication: dict[str, Any] = {
            "step": number, "steps": number, "train_seconds": 40.0 * number, "tokens": number,
            "useful_tokens": number, "waited_seconds": [20.0 * number, 0.0],
            "transfer_seconds": 0.0, "input_seconds": [0.0, 0.0], "sent_bytes": 0.0,
            "collectives": 0, "latency_seconds": 0.0,
        }  # fmt: skip
        events.write("communication", **communication)
        watch.tick()
    (found,) = [one for one in read_events(tmp_path) if one["event"] == "slow_host"]
    assert (found["host"], found["ratio"], found["step"]) == ("b", 2.0, 3)
    assert "hog" in found["message"]


def test_other_programs_of_this_host_are_seen_and_the_runs_own_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(activity, "NAMED_PROGRAMS", 1000)  # more than this machine runs besides
    monkeypatch.setattr(activity, "LEAST_CORES", 0.0)
    loop = "while True: pass"
    start = [sys.executable, "-c", loop]
    with subprocess.Popen(start) as other, subprocess.Popen(start) as own:
        try:
            condition = HostCondition(own.pid, time.monotonic())
            time.sleep(1.0)
            found = condition.read(time.monotonic())
        finally:
            other.kill()
            own.kill()
    pids = [pid for _, pid, _ in found["programs"]]
    assert other.pid in pids
    assert own.pid not in pids
