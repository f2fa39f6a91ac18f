"""Locks of the package manager, held by real processes."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ansible_collections.ftcluster.cluster.plugins.module_utils.package_locks import find_holder

# lockf uses fcntl's lock, as dpkg and apt do; flock is another kind of lock
HOLD = (
    "import fcntl, sys; file = open(sys.argv[1], 'w'); "
    "fcntl.{}(file, fcntl.LOCK_EX); print('held', flush=True); sys.stdin.read()"
)


@contextlib.contextmanager
def held(path: Path, kind: str = "lockf") -> Iterator[int]:
    """Lock a file in another process; return the process's id."""
    command = [sys.executable, "-I", "-c", HOLD.format(kind), str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        yield process.pid
        process.communicate("")


def test_the_holder_of_a_lock_is_named_with_its_command(tmp_path: Path) -> None:
    lock = tmp_path / "lock-frontend"
    files = [str(tmp_path / "none"), str(lock)]
    lock.touch()
    assert find_holder(files, ()) is None
    with held(lock) as pid:
        holder = find_holder(files, ())
        assert holder
        assert (holder.path, holder.pid) == (str(lock), pid)
        assert holder.command.startswith(sys.executable)
        assert str(holder) == f"process {pid} ({holder.command}) holds {lock}"
        assert "\n" not in str(holder)
    assert find_holder(files, ()) is None


def test_a_lock_that_apt_does_not_respect_is_none(tmp_path: Path) -> None:
    lock = tmp_path / "lock-frontend"
    with held(lock, "flock"):
        assert find_holder([str(lock)], ()) is None


def test_a_pid_file_counts_while_its_process_is_alive(tmp_path: Path) -> None:
    """dnf 4 has no other lock."""
    file = tmp_path / "rpmdb_lock.pid"
    for text, pid in (
        (str(os.getpid()), os.getpid()),
        ("999999999", None),
        ("", None),
        ("x", None),
    ):
        file.write_text(text)
        holder = find_holder((), [str(file), str(tmp_path / "none")])
        assert (holder.pid if holder else None) == pid
