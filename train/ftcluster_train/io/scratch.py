"""Temporary folders beside the entries of a cache.

A process that is killed, for example because memory is short, cannot remove its folder. The kernel
then frees the folder's lock, so the next process on this host can remove the folder. Standard
library only.
"""

import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SUFFIX = ".scratch"
RANDOM = 8  # number of random characters that mkdtemp adds


@contextmanager
def scratch_folder(cache: Path, name: str) -> Iterator[Path]:
    """Yield a new folder in `cache`, and remove it afterwards unless it has been renamed.

    Folders that killed processes on this host have left in `cache` are removed first.
    """
    cache.mkdir(parents=True, exist_ok=True)
    remove_abandoned(cache)
    parent = os.open(cache, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(
                parent, fcntl.LOCK_SH
            )  # keeps others from removing the folder before it is locked
        folder = Path(tempfile.mkdtemp(SUFFIX, f".{name}.{_host()}.", cache))
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
    finally:
        os.close(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_abandoned(cache: Path) -> None:
    """Remove temporary folders in a cache if their processes on this host have ended.

    Locks may not work between hosts that share a cache, so folders of other hosts are kept.
    """
    try:
        parent = os.open(cache, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return
    abandoned: dict[Path, int] = {}
    try:
        fcntl.flock(parent, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for folder in cache.glob(f".*.{_host()}.{'?' * RANDOM}{SUFFIX}"):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(lock)  # in use
            else:
                abandoned[folder] = lock
    except OSError:
        pass  # another process is removing folders, or the file system has no locks
    finally:
        os.close(parent)
    for folder, lock in abandoned.items():
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _host() -> str:
    """Return this host's name without dots, because dots separate the parts of a folder's name."""
    return socket.gethostname().replace(".", "-")
