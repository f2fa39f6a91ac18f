import os
import subprocess
import sys
import threading
from datetime import timedelta

import pytest

from ftcluster_train.comm import connectivity
from ftcluster_train.comm.connectivity import (
    check_connections,
    connected_ranks,
    connection_error,
    listen,
    unconnected_pairs,
)
from ftcluster_train.errors import TrainError
from ftcluster_train.supervisor import rank_environment
from ftcluster_train.supervisor.supervisor import free_port
from tests.programs import NODE_PATH

HERE = "127.0.0.1"
NOBODY = "192.0.2.7"  # an address for documentation, which no machine has


class Store:
    """A store like torch.distributed's that works between threads."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._changed:
            self._values[key] = value.encode()
            self._changed.notify_all()

    def wait(self, keys: list[str], limit: timedelta) -> None:
        with self._changed:
            there = self._changed.wait_for(lambda: self.check(keys), limit.total_seconds())
        if not there:
            raise RuntimeError("wait timeout")

    def check(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)

    def get(self, key: str) -> bytes:
        return self._values[key]


def check_all(addresses: list[str], ranks: list[int]) -> dict[int, list[list[int]]]:
    store, found = Store(), dict[int, list[list[int]]]()
    threads = [
        threading.Thread(
            target=lambda one=rank: found.update({one: check_connections(store, one, addresses)})
        )
        for rank in ranks
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_ranks_that_reach_each_other() -> None:
    found = check_all([HERE] * 4, [0, 1, 2, 3])
    assert list(found.values()) == [[[], [], [], []]] * 4
    assert check_all([HERE], [0]) == {0: [[]]}


def test_every_rank_learns_who_is_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        connectivity, "connection_error", lambda address, _: address.replace(HERE, "")
    )
    # rank 2's failure is not due to its own address
    found = check_all([HERE, HERE, NOBODY], [0, 1, 2])
    assert list(found.values()) == [[[2], [2], []]] * 3


def test_one_that_never_comes_is_reached_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connectivity, "WAIT_SECONDS", 0.3)
    found = check_all([HERE] * 3, [0, 2])
    assert list(found.values()) == [[[1], [0, 2], [1]]] * 2


def test_gaps_between_pairs_have_no_direction() -> None:
    assert unconnected_pairs([[2], [], [0, 1]]) == {(0, 2), (1, 2)}
    assert unconnected_pairs([]) == set()


@pytest.mark.parametrize(
    ("unreached", "members"),
    [
        ([[], [], []], [0, 1, 2]),
        ([[], [2], []], [0, 1]),
        ([[1], [], []], [0, 2]),  # never blame the head
        # blame one rank that misses two, not two ranks that miss one
        ([[], [3], [3], [1, 2]], [0, 1, 2]),
        ([[1, 2], [], []], [0]),
        ([[]], [0]),
    ],
)
def test_those_with_most_gaps_are_left_out(unreached: list[list[int]], members: list[int]) -> None:
    assert connected_ranks(unreached) == members


def test_a_listener_can_be_reached_many_times() -> None:
    port = free_port()
    with listen(HERE, port, callers=40):
        assert not any(connection_error(HERE, port) for _ in range(40))
    assert connection_error(HERE, port) == "Connection refused"


def test_a_port_that_one_launch_holds_is_its_rank_0s_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with rank_environment.hold_port() as held:
        port = held.getsockname()[1]
        monkeypatch.setattr(rank_environment, "RENDEZVOUS_PORTS", range(port, port + 1))
        with pytest.raises(TrainError, match=f"no TCP port from {port} to {port} is free"):
            free_port()
        with listen(HERE, port, callers=1):
            assert not connection_error(HERE, port)


def test_the_program_exits_with_1_and_the_reason() -> None:
    def connect(port: int) -> "subprocess.CompletedProcess[str]":
        argv = [sys.executable, "-m", "ftcluster_train.comm.connectivity", HERE, str(port)]
        environment = {**os.environ, "PYTHONPATH": NODE_PATH}
        return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)

    port = free_port()
    with listen(HERE, port, 1):
        assert connect(port).returncode == 0
    failed = connect(port)
    assert failed.returncode == 1
    assert failed.stderr.endswith(f"port {port}: Connection refused\n")
