# Apache-2.0 (see LICENSE)
"""Finds the process that holds a lock of the host's package manager (apt, dpkg, dnf, rpm)."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# dpkg(1), apt-get(8), rpm(8): each program locks its file with fcntl
LOCKED_FILES = (
    "/var/lib/dpkg/lock-frontend",
    "/var/lib/dpkg/lock",
    "/var/lib/apt/lists/lock",
    "/var/cache/apt/archives/lock",
    "/var/lib/rpm/.rpm.lock",
    "/usr/lib/sysimage/rpm/.rpm.lock",
    "/run/dnf/rpmtransaction.lock",
)
# dnf 4 writes its process id into these files and removes them at the end
PID_FILES = (
    "/var/lib/dnf/rpmdb_lock.pid",
    "/var/cache/dnf/metadata_lock.pid",
    "/var/cache/dnf/download_lock.pid",
)
FLOCK = struct.Struct("@hhqqi4x")  # struct flock of 64-bit Linux: type, whence, start, length, pid
MOST_COMMAND = 120  # characters of a command in a message
MOST_PID_FILE = 32  # bytes of a file to read


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock.

    Attributes:
        path: file of the lock.
        pid: id of the process; 0 if it is not visible here, such as a process outside a container.
        command: command line of the process, or "".
    """

    path: str
    pid: int
    command: str = ""

    def __str__(self) -> str:
        """Return the holder as a part of a sentence."""
        if not self.pid:
            return f"a process that is not visible on this host holds {self.path}"
        command = f" ({self.command})" if self.command else ""
        return f"process {self.pid}{command} holds {self.path}"


def find_holder(
    locked_files: Iterable[str] = LOCKED_FILES,
    pid_files: Iterable[str] = PID_FILES,
    processes: Path = Path("/proc"),
) -> Holder | None:
    """Return the holder of the first lock that is taken, or None if all locks are free.

    Raises:
        OSError: a lock's file exists, but this user cannot read it.
    """
    for path in locked_files:
        pid = fcntl_owner(path)
        if pid is not None:
            return Holder(path, pid, command_of(pid, processes))
    for path in pid_files:
        pid = living_pid(path, processes)
        if pid is not None:
            return Holder(path, pid, command_of(pid, processes))
    return None


def fcntl_owner(path: str) -> int | None:
    """Return the id of the process that has locked a file, or None if the lock is free.

    Return 0 if that process is not visible here; the kernel then reports 0 or -1.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        wanted = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, wanted))
    finally:
        os.close(descriptor)
    return None if kind == fcntl.F_UNLCK else max(pid, 0)


def living_pid(path: str, processes: Path) -> int | None:
    """Return the process id in a file if this process is alive, else None."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(MOST_PID_FILE).strip()
    except FileNotFoundError:
        return None
    if not text.isdigit() or not (processes / str(int(text)) / "stat").exists():
        return None
    return int(text)


def command_of(pid: int, processes: Path) -> str:
    """Return the command line of a process on one line, or "" if it has ended."""
    try:
        arguments = (processes / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ""
    text = os.fsdecode(arguments).replace("\0", " ").strip()
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    return shown if len(shown) <= MOST_COMMAND else f"{shown[:MOST_COMMAND]} ..."
