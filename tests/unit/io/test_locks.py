"""Locks that a process waits for while a second process holds them."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftcluster_train.io.locks import EXCLUSIVE, SHARED, lock_within, try_lock

HOLDS = """
import fcntl, sys, time
file = open(sys.argv[1])
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Start a process that holds an exclusive lock on a file until it reads a line."""
    (path := tmp_path / "file").touch()
    argv = [sys.executable, "-c", HOLDS, str(path)]
    with subprocess.Popen(argv, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED])
def test_a_lock_of_another_process_is_waited_for_until_the_limit(
    tmp_path: Path, holder: "subprocess.Popen[str]", kind: int
) -> None:
    asked: list[float] = []

    def limit() -> float:
        asked.append(time.monotonic())
        if len(asked) == 3:
            holder.communicate("end\n")
        return 5.0

    with (tmp_path / "file").open() as file:
        assert not try_lock(file.fileno(), kind)
        began = time.monotonic()
        assert not lock_within(file.fileno(), kind, lambda: 0.05, 0.01)
        assert time.monotonic() - began > 0.05
        assert lock_within(file.fileno(), kind, limit, 0.01)
        assert len(asked) == 3


def test_two_processes_share_a_shared_lock(tmp_path: Path) -> None:
    (path := tmp_path / "file").touch()
    with path.open() as one, path.open() as other:  # two open files conflict like two processes
        assert try_lock(one.fileno(), SHARED)
        assert lock_within(other.fileno(), SHARED, lambda: 0.0, 0.0)
        assert not try_lock(other.fileno(), EXCLUSIVE)


def test_a_file_without_locks_refuses_nobody() -> None:
    assert try_lock(1_000_000, EXCLUSIVE)  # other errors of the kernel do not count as a held lock
