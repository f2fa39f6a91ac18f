"""Private folders in memory; the next command removes the folders of killed processes."""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ftcluster.paths import memory_dir

MOST_BYTES = 1 << 16  # maximum length of a typed password
# process id, start time and PID namespace of the process, because containers may share /dev/shm
NAME = re.compile(r"ftcluster-(?P<pid>\d+)-(?P<start>\d+)-(?P<space>\d+)-\w+")


@contextlib.contextmanager
def private_folder() -> Iterator[Path]:
    """Yield a folder in memory (0700), removed at the end; remove folders of killed processes."""
    remove_left_over()
    prefix = f"ftcluster-{os.getpid()}-{_start_of(os.getpid())}-{_space()}-"
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=memory_dir()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_left_over() -> None:
    """Remove this user's folders of processes that no longer exist."""
    for folder in memory_dir().glob("ftcluster-*"):
        match = NAME.fullmatch(folder.name)
        if not match or int(match["space"]) != _space():
            continue
        with contextlib.suppress(OSError):  # somebody else removes it too
            if folder.lstat().st_uid == os.geteuid() and _start_of(int(match["pid"])) != int(
                match["start"]
            ):
                shutil.rmtree(folder, ignore_errors=True)


def _start_of(pid: int) -> int:
    """Return the start time of a process in ticks since boot; 0 if the process no longer exists.

    The id alone does not identify a process, because the kernel reuses ids.
    """
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return 0


def _space() -> int:
    """Return the number of this process's PID namespace."""
    return Path("/proc/self/ns/pid").stat().st_ino


def answer_in_memory(word: str) -> bytes | None:
    """Return the typed password if an argument is the path of this process's descriptor, or None.

    Ansible cannot open such a path itself: it resolves links in the paths of password files, and
    a descriptor's path is a link.
    """
    before, _, descriptor = word.rpartition("/fd/")
    if before != f"/proc/{os.getpid()}" or not descriptor.isdigit():
        return None
    return os.pread(int(descriptor), MOST_BYTES, 0)
