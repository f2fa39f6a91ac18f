"""Ranks and hosts in trouble are identified from their guardians' reports."""

import contextlib
import json
import math
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ftcluster_common.protocol.launch import RENDEZVOUS_PORTS, Host
from ftcluster_common.protocol.timeouts import Timeouts
from ftcluster_train.io.activity import HostCondition, activity, sleep_of
from ftcluster_train.io.events import place_and_message
from ftcluster_train.io.rank_status import REPORT, rank_of, read_report
from ftcluster_train.rank.guardian import connect
from ftcluster_train.supervisor.heartbeats import UNGREETED, Heartbeats
from ftcluster_train.supervisor.rank_launch import listen_for_guardians
from ftcluster_train.supervisor.rank_life import RankLife, find_trouble, out_of_memory

HOSTS = ["head", "head", "node1", "node1"]
HOST = Host("head", "127.0.0.1")
NOW = 100.0


def lives(**changes: Any) -> list[RankLife]:
    """Return four active ranks on two hosts; `rank2={...}` changes one of them."""
    ranks = [
        RankLife(rank, host, "", heard=NOW, step=7, doing="all-reduce", changed=NOW, busy=NOW)
        for rank, host in enumerate(HOSTS)
    ]
    for name, fields in changes.items():
        for field, value in fields.items():
            setattr(ranks[int(name.removeprefix("rank"))], field, value)
    return ranks


def found(
    ranks: list[RankLife], now: float = NOW, hang_seconds: float | None = None
) -> list[tuple[str, str, int | None]]:
    return [
        (one.cause, one.host, one.rank)
        for one in find_trouble(ranks, now, Timeouts(), hang_seconds)
    ]


def test_ranks_at_work_are_no_trouble() -> None:
    assert found(lives()) == []
    late = lives(rank1={"heard": None})  # the rank has not started yet
    assert found(late) == []
    late[1].changed = NOW - 121
    assert found(late) == [("host", "head", 1)]


def test_a_restart_names_a_lost_host_once() -> None:
    silent = {"heard": NOW - 11}
    (lost,) = find_trouble(lives(rank2=silent, rank3=silent), NOW, Timeouts())
    (killed,) = find_trouble(lives(rank2={"exit": -9}), NOW, Timeouts())
    assert place_and_message(vars(lost)).startswith("node1 () was lost at ")
    assert place_and_message(vars(killed)).startswith("rank 2 on node1: killed by signal 9")
    refused = {"host": "node1", "rank": None, "message": "node1: ssh from the head fails"}
    assert place_and_message(refused) == refused["message"]
    assert place_and_message({**refused, "host": "node"}) == f"node: {refused['message']}"


def test_a_rank_that_is_out_of_memory_is_named_with_its_memory() -> None:
    """The guardian sends a real reading of this process."""
    ranks = lives(rank2={"heard": NOW})
    reading = json.dumps(activity(os.getppid(), (os.getpid(),))).encode()
    ranks[2].take(read_report(reading), NOW)
    assert 1e6 < ranks[2].memory < 1e11
    ranks[2].take(read_report(b'{"memory": 4096}'), NOW)  # only a script's parent process remains
    ranks[2].take(read_report(b'{"exit": -9, "oom": true}'), NOW)
    (trouble,) = find_trouble(ranks, NOW, Timeouts())
    used = f"{ranks[2].memory / 1e9:.1f} GB"
    message = place_and_message(vars(trouble))
    assert message.startswith("rank 2 on node1: killed by the kernel: the host is out of memory")
    assert f"(this rank used up to {used}) at step" in message


def test_of_several_ranks_without_memory_the_first_is_named() -> None:
    dead = {"exit": 137, "oom": True}  # exit of a script's process, which ends for the script
    ranks = lives(rank2={**dead, "changed": NOW}, rank3={**dead, "changed": NOW - 1})
    ranks[0].exit = -9
    assert [(one.cause, one.rank) for one in out_of_memory(ranks)] == [("oom", 3)]
    assert out_of_memory(lives(rank2={"exit": -9})) == []


@pytest.mark.parametrize(
    ("changes", "trouble"),
    [
        ({"rank2": {"exit": -9}}, [("signal", "node1", 2)]),
        ({"rank2": {"exit": -9, "oom": True}}, [("oom", "node1", 2)]),
        ({"rank1": {"exit": 1}}, []),  # the rank itself reports the cause
        ({"rank1": {"exit": 1, "changed": NOW - 6}}, [("exit", "head", 1)]),
        # the killed rank is the cause; the others only noticed its end
        ({"rank0": {"exit": 1}, "rank2": {"exit": -9}}, [("signal", "node1", 2)]),
        ({"rank3": {"stopped": NOW - 5}}, [("stopped", "node1", 3)]),
        ({"rank3": {"stopped": NOW - 1}}, []),
        ({"rank2": {"heard": NOW - 11}, "rank3": {"heard": NOW - 11}}, [("host", "node1", None)]),
        # one of them was heard a little later than the other
        ({"rank2": {"heard": NOW - 11}, "rank3": {"heard": NOW - 9.9}}, [("host", "node1", None)]),
        ({"rank2": {"heard": NOW - 11}, "rank3": {"heard": NOW - 4}}, [("stopped", "node1", 2)]),
        (
            {"rank2": {"heard": NOW - 11}, "rank3": {"heard": NOW - 9.9, "acked": NOW - 1}},
            [("stopped", "node1", 2)],
        ),
        ({"rank2": {"heard": NOW - 11}, "rank3": {"exit": 0}}, [("host", "node1", None)]),
        # their host acknowledges sent data
        (
            {"rank2": {"heard": NOW - 11}, "rank3": {"heard": NOW - 11, "acked": NOW - 1}},
            [("stopped", "node1", 2), ("stopped", "node1", 3)],
        ),
        # the host closed the connections, so it is alive
        (
            {"rank2": {"lost": True}, "rank3": {"lost": True}},
            [("signal", "node1", 2), ("signal", "node1", 3)],
        ),
        ({"rank2": {"lost": True}}, [("signal", "node1", 2)]),
        ({"rank2": {"heard": NOW - 11}}, [("stopped", "node1", 2)]),
        ({"rank2": {"heard": NOW - 9}}, []),
        # an end without an error needs no sign of life
        ({"rank2": {"exit": 0, "heard": NOW - 60}}, []),
    ],
)
def test_the_cause_is_named(changes: dict[str, Any], trouble: list[Any]) -> None:
    assert found(lives(**changes)) == trouble


def test_a_hang_is_that_of_the_rank_that_is_behind() -> None:
    ranks = lives(rank1={"doing": "forward"})
    for one in ranks:
        one.changed = one.busy = NOW - 11
    assert found(ranks) == [("hung", "head", 1)]
    (trouble,) = find_trouble(ranks, NOW, Timeouts())
    assert (trouble.step, "forward" in trouble.message) == (7, True)
    ranks[2].doing = "starting"  # until all ranks have met, a rank may wait longer for another
    assert found(ranks) == []
    for one in ranks:
        one.changed = one.busy = NOW - 121
    assert found(ranks) == [("hung", "node1", 2)]
    ranks[2].doing = "all-reduce"
    ranks[3].busy = NOW - 1  # the rank computes, and the others wait for it
    assert found(ranks) == []


@pytest.mark.parametrize("doing", ["evaluating", "saving"])
def test_a_long_evaluation_or_save_of_one_rank_is_no_hang(doing: str) -> None:
    ranks = lives()
    for rank, one in enumerate(ranks):
        where = {"step": 6, "doing": doing} if rank == 0 else {"step": 7, "doing": "all-reduce"}
        one.take({**where, "cpu": 0.0, "wire": 0, "state": "S"}, NOW)
    for second in range(1, 61):  # rank 0 computes, then writes to the disk
        cpu, state = (0.5 * second, "S") if second < 30 else (14.5, "D")
        ranks[0].take({"cpu": cpu, "state": state}, NOW + second)
        for one in ranks[1:]:
            one.take({"cpu": 0.0, "state": "S"}, NOW + second)
        assert found(ranks, NOW + second) == []
    for one in ranks:
        one.take({"state": "S"}, NOW + 71)
    assert found(ranks, NOW + 71) == [("hung", "head", 0)]
    (trouble,) = find_trouble(ranks, NOW + 71, Timeouts())
    assert f"hung in {doing}" in trouble.message


def test_a_rank_that_does_not_wake_up_from_the_kernel_is_named() -> None:
    ranks = lives()

    def slept(seconds: float, slept: int, doing: str = "forward") -> None:
        for one in (*ranks[:2], ranks[3]):  # these ranks compute, or wait for rank 2
            one.take({"cpu": seconds, "state": "S"}, NOW + seconds)
        sleep = [4711, slept, "folio_wait"]
        ranks[2].take({"state": "D", "sleep": sleep, "doing": doing}, NOW + seconds)

    for second in range(20):  # the rank wakes up in between
        slept(second, slept=second)
        assert found(ranks, NOW + second) == []
    slept(29, slept=19)
    assert found(ranks, NOW + 29) == []
    slept(30, slept=19)
    assert found(ranks, NOW + 30) == [("asleep", "node1", 2)]
    (trouble,) = find_trouble(ranks, NOW + 30, Timeouts())
    assert trouble.message == "waits in the kernel (state D, folio_wait) at step 7"
    assert found(ranks, NOW + 30, hang_seconds=0) == found(ranks, NOW + 30, hang_seconds=600) == []
    slept(31, slept=19, doing="saving")  # a slow disk
    assert found(ranks, NOW + 31) == []
    slept(140, slept=19, doing="saving")
    assert found(ranks, NOW + 140) == [("asleep", "node1", 2)]
    ranks[2].take({"state": "S", "sleep": None}, NOW + 141)
    assert found(ranks, NOW + 141) == []


def test_a_script_may_wait_for_as_long_as_it_was_given() -> None:
    ranks = lives()
    for one in ranks:
        one.doing, one.changed, one.busy = "script", NOW - 700, NOW - 601
    ranks[1].busy = NOW - 650  # the first rank that was idle
    assert [rank for _, _, rank in found(ranks, hang_seconds=600)] == [1, 0, 2, 3]
    assert found(ranks, hang_seconds=0) == []
    ranks[3].busy = NOW - 599
    assert found(ranks, hang_seconds=600) == []


def test_a_rank_that_computes_or_uses_disk_or_network_is_not_idle() -> None:
    one = RankLife(0, "head", "10.0.0.1")
    one.take({"cpu": 0.0, "state": "S"}, 5.0)
    assert one.busy == 0.0
    one.take({"cpu": 0.9, "state": "S"}, 6.0)
    assert one.busy == 6.0
    one.take({"cpu": 0.9, "state": "D"}, 9.0)
    assert one.busy == 9.0
    one.take({"cpu": 0.9, "wire": 900, "state": "S"}, 10.0)
    assert one.busy == 9.0
    one.take({"cpu": 0.9, "wire": 5000, "state": "S"}, 11.0)
    assert one.busy == 11.0
    one.take({"cpu": 0.9, "wire": 5000, "state": "S", "step": 1, "doing": "forward"}, 12.0)
    assert (one.busy, one.changed, one.step) == (12.0, 12.0, 1)
    for second, state in enumerate("RRSRRRR", 20):  # other processes leave it no CPU time
        one.take({"cpu": 0.9, "wire": 5000, "state": state}, float(second))
        assert one.busy == (second if second >= 25 else 12.0)
    # an hour of idling does not hide that it computes again
    one = RankLife(0, "head", "10.0.0.1")
    for second in range(3600):  # a thread that wakes up now and then
        one.take({"cpu": second * 0.005, "wire": second * 50, "state": "S"}, float(second))
    assert one.busy == 0.0
    one.take({"cpu": 18.9, "wire": 0, "state": "S"}, 3600.0)
    assert one.busy == 3600.0


def polled(beats: Heartbeats, until: float = 0.5) -> None:
    deadline = time.monotonic() + until
    while time.monotonic() < deadline:
        beats.poll(time.monotonic())
        time.sleep(0.02)


def test_a_supervisor_that_was_stopped_is_the_cause() -> None:
    """The guardians have ended their ranks meanwhile."""
    beats = Heartbeats("127.0.0.1", 0, "secret", [HOST] * 2, NOW, Timeouts())
    try:
        beats.poll(NOW + 16)  # the first poll: other hosts were asked, which had no ranks yet
        assert beats.trouble(NOW + 16) == []
        beats.poll(NOW + 30)
        assert beats.trouble(NOW + 30) == []
        beats.poll(NOW + 46)
        beats.lives[1].exit = -9
        [one] = beats.trouble(NOW + 46)
        assert (one.cause, one.host, one.rank) == ("stopped", "head", None)
    finally:
        beats.close()


HELLO = b"secret 2\n"
STRANGERS = (
    b'{"secret": "secret", "rank": 0}\n',
    b"secret 9\n",
    b"secret -1\n",
    b"secret 00000000000000000\n",
    b"secret\n",
    b"secreT 0\n{}\n",
    b"[" * 60_000 + b"\n",
    b'{"step": 1e999}\n',
    b"\xff" * 4096,
)


@pytest.fixture
def beats() -> Iterator[Heartbeats]:
    found = Heartbeats("127.0.0.1", 0, "secret", [HOST] * 4, time.monotonic(), Timeouts())
    yield found
    found.close()


def connected(beats: Heartbeats) -> socket.socket:
    port = int(beats.listens_at.rpartition(":")[2])
    return socket.create_connection(("127.0.0.1", port), 2)


def hung_up(stranger: socket.socket) -> bool:
    stranger.setblocking(False)
    try:
        return stranger.recv(10) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:  # the connection closed with unread bytes
        return True


@pytest.mark.parametrize("said", STRANGERS)
def test_who_does_not_have_the_secret_is_hung_up_on(beats: Heartbeats, said: bytes) -> None:
    with connected(beats) as stranger:
        stranger.sendall(said)
        polled(beats, 0.1)
        assert hung_up(stranger)
    assert [one.heard for one in beats.lives] == [None] * 4


def test_who_says_nothing_or_says_it_slowly_is_hung_up_on(beats: Heartbeats) -> None:
    now = time.monotonic()
    with connected(beats) as silent, connected(beats) as slow:
        beats.poll(now)
        for byte in b"secre":
            slow.send(bytes([byte]))
            beats.poll(now)
        beats.poll(now + 4)
        assert not hung_up(silent)
        beats.poll(now + 6)
        assert hung_up(silent)
        assert hung_up(slow)


def test_of_those_who_wait_the_oldest_are_hung_up_on(beats: Heartbeats) -> None:
    now = time.monotonic()
    with contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(connected(beats)) for _ in range(UNGREETED + 3)]
        beats.poll(now)
        assert [hung_up(one) for one in strangers] == [True] * 3 + [False] * UNGREETED


def test_they_listen_in_the_cluster_and_within_its_ports(tmp_path: Path) -> None:
    (tmp_path / "guard").write_text("secret\n")
    head = Host("head", "127.0.0.2")
    launch: Any = SimpleNamespace(
        run_dir=str(tmp_path), hosts=(head,), rank_hosts=[head], timeouts=Timeouts(),
        hang_seconds=None,
    )  # fmt: skip
    beats = listen_for_guardians(launch)
    address, _, port = beats.listens_at.rpartition(":")
    beats.close()
    assert address == "127.0.0.2"
    assert int(port) in RENDEZVOUS_PORTS


def test_guardians_get_in_among_thousands_of_strangers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], beats: Heartbeats
) -> None:
    """Strangers connect before, between and after them; half of them stay and send nothing."""
    (tmp_path / "guard").write_text("secret\n")
    stayed: list[socket.socket] = []
    guardians: dict[int, socket.socket] = {}

    def guardian(rank: int) -> None:
        guardians[rank] = connect(beats.listens_at, tmp_path / "guard", rank, 20)

    threads = [threading.Thread(target=guardian, args=(rank,)) for rank in range(4)]
    for number in range(2000):
        if number % 500 == 250:
            threads[number // 500].start()
        stranger = connected(beats)
        if number % 2:
            stayed = [*stayed[-300:], stranger]
        else:
            stranger.sendall(STRANGERS[number // 2 % len(STRANGERS)])
            stranger.close()
        if number % 100 == 0:
            beats.poll(time.monotonic())
    while any(thread.is_alive() for thread in threads):
        polled(beats, 0.05)
    try:
        assert sorted(guardians) == [0, 1, 2, 3]
        for guard in guardians.values():
            guard.sendall(b'{"step": 5}\n')
        polled(beats, 0.2)
        assert [one.step for one in beats.lives] == [5] * 4
        said = capsys.readouterr().out
        assert said.count("\n") == 1
        assert "127.0.0.1" in said
    finally:
        for one in (*stayed, *guardians.values()):
            one.close()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
FIELDS = st.dictionaries(st.sampled_from([*REPORT, "secret", "more"]), JSON, max_size=4)
LINES = (
    st.binary()
    | FIELDS.map(lambda found: json.dumps(found).encode())
    | st.integers().map(lambda size: b'{"cpu":' + b"[" * (abs(size) % 9000))
)


@given(st.lists(LINES, max_size=4))
@example([b"[" * 9000])
@example([b'{"step": 1e999}'])
@example([b'{"cpu": 1e999}', b'{"cpu": NaN}', b'{"wire": ' + b"9" * 4000 + b"}"])
@example([b'{"step": "7"}', b'{"exit": true}', b'{"sleep": [1]}', b'{"host": {}}', b"null", b"7"])
def test_whatever_a_guardian_says_is_taken_or_left(lines: list[bytes]) -> None:
    life = RankLife(0, "head", "", heard=NOW, changed=NOW)
    for line in lines:
        with contextlib.suppress(ValueError):
            life.take(read_report(line), NOW + 1)
        assert 0 <= life.step <= 1 << 62
        assert math.isfinite(life.cpu)
        find_trouble([life], NOW + 1, Timeouts())


def test_what_a_guardian_says_arrives() -> None:
    """The guardian sends real readings of this host."""
    said = {"step": 3, "doing": "saving", **activity(os.getppid(), (os.getpid(),))}
    said["sleep"] = sleep_of(os.getpid())
    said["host"] = HostCondition(os.getppid(), 0.0).read(0.1)
    line = json.dumps(said).encode()
    assert read_report(line) == json.loads(line)


@given(st.binary(max_size=40))
@example(b"secret ")
@example("secret \u0663\n".encode())
def test_only_hello_has_a_rank(said: bytes) -> None:
    try:
        rank = rank_of(said, "secret")
    except ValueError:
        assert not re.fullmatch(rb"secret \d{1,8}\n", said)
        return
    assert (rank is not None) == bool(re.fullmatch(rb"secret \d{1,8}\n(?s:.*)", said))


def test_a_guardian_is_heard_until_it_hangs_up(beats: Heartbeats) -> None:
    with connected(beats) as guardian:
        guardian.sendall(HELLO + b'{"step": 5, "doing": "for')
        guardian.sendall(b'ward", "state": "S"}\n')
        polled(beats, 1.3)
        assert guardian.recv(10) == b"beat\nbeat\n"  # the first beat is for the greeting
        assert (beats.lives[2].step, beats.lives[2].doing) == (5, "forward")
        assert 0 <= time.monotonic() - beats.lives[2].acked < 1.3
        assert beats.lives[1].acked < 0
        guardian.sendall(b"[" * 9000 + b'\n{"step": 1e999}\n{"step": 6}\n')
        polled(beats, 0.2)
        assert beats.lives[2].step == 6
    polled(beats, 0.2)
    assert beats.lives[2].lost
    now = time.monotonic()
    beats.lives[0].exit, beats.lives[1].heard = 1, now - 11  # the host was lost
    assert beats.all_gone(now)
    beats.lives[1].heard = now - 9
    assert not beats.all_gone(now)
