"""The supervisor with the ranks and hosts of a large cluster."""

import os
import resource
import signal
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ftcluster_common.protocol.launch import Host
from ftcluster_common.protocol.timeouts import Timeouts
from ftcluster_train.errors import TrainError
from ftcluster_train.rank.guardian import connect
from ftcluster_train.supervisor.heartbeats import Heartbeats
from ftcluster_train.supervisor.leases import _Holder
from ftcluster_train.supervisor.rank_launch import PAUSE_SECONDS, _read, make_room_for_files
from ftcluster_train.supervisor.rank_life import RankLife

RANKS = 512
HOSTS = [Host(f"node{rank // 8}", "127.0.0.1") for rank in range(RANKS)]


def test_512_guardians_that_connect_at_once_are_greeted_and_heard(tmp_path: Path) -> None:
    """Real guardians greet; the supervisor polls as rarely as during a run."""
    make_room_for_files(2 * RANKS, 0)  # both ends are in this process
    (tmp_path / "guard").write_text("secret\n")
    beats = Heartbeats("127.0.0.1", 0, "secret", HOSTS, time.monotonic(), Timeouts())
    greeted: list[Any] = [None] * RANKS

    def guardian(rank: int) -> None:
        greeted[rank] = connect(beats.listens_at, tmp_path / "guard", rank, 60)

    threads = [threading.Thread(target=guardian, args=(rank,)) for rank in range(RANKS)]
    try:
        for thread in threads:
            thread.start()
        polls = 0
        while any(thread.is_alive() for thread in threads):
            beats.poll(time.monotonic())
            polls += 1
            time.sleep(PAUSE_SECONDS)
        assert all(life.heard for life in beats.lives)
        assert polls < RANKS / 16, "a poll takes few of those who wait"
        for rank, connection in enumerate(greeted):
            connection.sendall(b'{"step": %d, "doing": "forward"}\n' % rank)
        beats.poll(time.monotonic())
        assert [life.step for life in beats.lives] == list(range(RANKS))
        assert beats.trouble(time.monotonic()) == []
    finally:
        beats.close()
        for connection in filter(None, greeted):
            connection.close()


class Counted:
    """A stand-in for Heartbeats that counts the checks of ranks."""

    def __init__(self) -> None:
        self.polls, self.all_done = 0, False
        self.lives = [RankLife(0, "a", "b", exit=0)]

    def poll(self, _now: float) -> None:
        self.polls += 1

    def trouble(self, _now: float) -> list[Any]:
        return []


class Pieces:
    """A stand-in for a Watch that counts the pieces of output."""

    def __init__(self) -> None:
        self.count, self.over = 0, False

    def feed(self, _stream: str, _data: bytes) -> None:
        self.count += 1

    def pause(self) -> None:
        pass

    close = pause


def test_much_output_does_not_have_the_supervisor_look_at_all_ranks_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    process = subprocess.Popen(
        ["dd", "if=/dev/zero", "bs=64k", "count=400"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    beats, watch = Counted(), Pieces()
    request = SimpleNamespace(check=lambda: None)
    began = time.monotonic()
    _read(process, watch, beats, request, lambda: None, lambda _: None)  # type: ignore[arg-type]
    assert watch.count >= 400
    assert beats.polls <= (time.monotonic() - began) / PAUSE_SECONDS + 2


@pytest.mark.parametrize(
    ("soft", "hard", "room"), [(1024, 524288, 2944), (65536, 524288, None), (1024, -1, 2944)]
)
def test_room_is_made_for_files(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, room: int | None
) -> None:
    """The usual limit is 1024; 512 leases have three pipes each, and each rank has a connection."""
    made: list[Any] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _what, limits: made.append(limits))
    make_room_for_files(512, 512)
    assert made == ([(room, hard)] if room else [])


def test_an_account_that_may_not_open_as_many_files_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (1024, 4096))
    with pytest.raises(
        TrainError, match=r"can open 4096 files, but 4096 ranks on 512 hosts"
    ) as error:
        make_room_for_files(4096, 512)
    assert "nofile" in error.value.hint


def test_the_last_of_many_hosts_is_asked_too() -> None:
    """The descriptors of its pipes are too high for select()."""
    make_room_for_files(2 * RANKS, 0)
    first = os.open(os.devnull, os.O_RDONLY)
    held = [os.dup(first) for _ in range(1024)]
    try:
        holder = _Holder(HOSTS[0], ["sh", "-c", "read ask; echo held"], Timeouts())
        assert holder.ask() is None
        assert holder.held
        holder.process.communicate()
    finally:
        for descriptor in (first, *held):
            os.close(descriptor)


def test_a_host_whose_connection_hangs_does_not_keep_the_others_leases_waiting() -> None:
    """The pipe of that host fills up in the end."""
    holder = _Holder(HOSTS[0], ["sleep", "60"], Timeouts())
    thread = threading.Thread(
        target=lambda: [holder.send(bytes(1 << 16)) for _ in range(3)], daemon=True
    )
    try:
        thread.start()
        thread.join(20)
        assert not thread.is_alive()
    finally:
        holder.process.kill()
        holder.process.communicate()
