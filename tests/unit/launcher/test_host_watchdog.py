"""Hosts whose ssh has given up while mpirun still waits for them."""

from pathlib import Path

import pytest

from ftcluster_common.launch import Host
from ftcluster_train.launcher.host_watchdog import Connections, as_error

NODES = [Host("node1", "10.0.0.11"), Host("node2", "10.0.0.12")]
FIELDS = "1 1 1 0 -1 0 0"  # proc(5) has more, between the state and the exit code


class Head:
    """The processes of a head, and its clock."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc
        self.now = 0.0
        self.connections = Connections(NODES, self.processes, lambda: self.now, proc)

    def processes(self) -> list[int]:
        return [int(folder.name) for folder in self.proc.iterdir()]

    def show(self, pid: int, state: str, status: int = 0, *words: str) -> None:
        folder = self.proc / str(pid)
        folder.mkdir(exist_ok=True)
        (folder / "cmdline").write_text("".join(f"{word}\0" for word in words))
        (folder / "stat").write_text(f"{pid} (odd ) name) {state} {FIELDS} {status}\n")

    def look(self) -> list[str]:
        self.now += 1.5
        return [host.name for host in self.connections.lost()]


@pytest.fixture
def head(tmp_path: Path) -> Head:
    head = Head(tmp_path)
    head.show(7, "S", 0, "mpiexec.hydra", "-n", "3")
    for number, host in enumerate(NODES):
        head.show(8 + number, "S", 0, "/usr/bin/ssh", "-q", host.address, "proxy")
    assert head.look() == []
    return head


def test_a_host_is_lost_when_its_ssh_has_failed_and_nobody_looks(head: Head) -> None:
    head.show(9, "Z", 255 << 8)
    assert head.look() == []  # mpirun may be about to
    assert head.look() == ["node2"]


def test_a_host_whose_ranks_have_ended_before_the_others_is_not(head: Head) -> None:
    head.show(8, "Z", 0)
    head.show(9, "Z", 7 << 8)
    assert head.look() == head.look() == []


def test_neither_is_one_of_which_mpirun_knows(head: Head) -> None:
    head.show(9, "Z", 255 << 8)
    assert head.look() == []
    for file in (head.proc / "9").iterdir():
        file.unlink()
    assert head.look() == head.look() == []


def test_the_error_says_which_host_and_what_to_do() -> None:
    error = as_error(NODES[1])
    assert error["host"] == "node2"
    assert error["message"].startswith("node2 (10.0.0.12) was lost")
    assert "ftcluster check" in error["hint"]
