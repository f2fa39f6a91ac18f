"""The store at which the ranks meet, and the values that they exchange."""

import doctest
import importlib
import math
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ftcluster_train.comm import world
from ftcluster_train.comm.world import gather_over_ranks, open_store
from ftcluster_train.errors import TrainError
from ftcluster_train.rank.startup_hooks import RENDEZVOUS, listen_at_one_address
from ftcluster_train.supervisor.supervisor import free_port
from tests.engine.ranks import on_ranks

LISTEN = "0A"  # Linux, include/net/tcp_states.h


def listening() -> set[str]:
    """Return the addresses at which this process listens, as in /proc/net/tcp."""
    own = {str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == LISTEN and f"socket:[{words[9]}]" in own:
                found.add(words[1].partition(":")[0])
    return found


def test_the_store_listens_at_the_address_of_the_cluster_and_at_no_other() -> None:
    before = listening()
    store = open_store("127.0.0.2", free_port(), 0, 1, timedelta(seconds=10))
    store.set("key", "value")
    assert store.get("key") == b"value"
    assert listening() - before == {"0200007F"}  # 127.0.0.2 in little-endian byte order


def test_the_store_of_a_script_listens_there_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    rendezvous: Any = importlib.import_module(RENDEZVOUS)
    monkeypatch.setattr(rendezvous, "TCPStore", rendezvous.TCPStore)
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    listen_at_one_address()
    before = listening()
    where = f"tcp://127.0.0.2:{free_port()}?rank=0&world_size=1"
    store, _, _ = next(rendezvous.rendezvous(where))
    store.set("key", "value")
    assert store.get("key") == b"value"
    assert listening() - before == {"0200007F"}


def test_a_head_at_the_loopback_interface_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On Debian, a pod with hostNetwork has 127.0.1.1 for its own name in /etc/hosts."""
    given = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.1.1"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TrainError, match="belongs to the loopback interface"):
        world.join_world()


def test_a_port_that_is_taken_is_named_and_worth_another_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(TrainError, match=f"127.0.0.1, port {port}: Address already") as caught:
            open_store("127.0.0.1", port, 0, 1, timedelta(seconds=1))
    assert caught.value.restartable


def say(rank: int, size: int) -> list[Any]:
    """Exchange values of different lengths, one of them empty."""
    return [
        gather_over_ranks({"rank": rank, "text": "\u00e4" * 100 * rank, "of": [size, None]}),
        gather_over_ranks([] if rank else [[0, 0.1], [1, math.inf]]),
    ]


def test_what_the_ranks_have_is_the_same_on_all(tmp_path: Path) -> None:
    expected = [
        [{"rank": rank, "text": "\u00e4" * 100 * rank, "of": [2, None]} for rank in range(2)],
        [[[0, 0.1], [1, math.inf]], []],
    ]
    assert on_ranks(say, 2, tmp_path) == [expected, expected]


def test_the_examples_in_docstrings() -> None:
    assert doctest.testmod(world).failed == 0
