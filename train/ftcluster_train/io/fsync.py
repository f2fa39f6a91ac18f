"""Files that survive a crash of the machine, and who may read them. Standard library only."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# values for os.umask: who else may read a run's files on a host
ACCOUNT_ONLY = 0o077  # tokenized data, and what was downloaded with a user's token
GROUP_READS = 0o027  # logs, events, models: also for members of the account's group
SPACE_BYTES = 1 << 20  # that events and a launch need


def sync(path: Path) -> None:
    """Write a file, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Write a folder and all that is in it to the disk."""
    for path in (*folder.rglob("*"), folder):
        sync(path)


def write_atomically(path: Path, text: str) -> None:
    """Write a file that is never seen half-written, also after a crash."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    except OSError:  # a full disk, say
        partial.unlink(missing_ok=True)
        raise
    sync(path.parent)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to write into, which gets its name when all of it is on the disk; or nothing.

    What has the name is replaced: the same from ranks that were started again after they wrote it,
    or something damaged.
    """
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        sync_tree(partial)
        if folder.exists():
            remove(folder)
        partial.rename(folder)
        sync(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process was writing into a folder, or removing from it."""
    for path in (*folder.glob("*.partial"), *folder.glob(".*.removed")):
        shutil.rmtree(path, ignore_errors=True)


def remove(folder: Path) -> None:
    """Remove a folder: renamed first, so that a crash leaves no incomplete folder of its name."""
    hidden = folder.with_name(f".{folder.name}.removed")
    shutil.rmtree(hidden, ignore_errors=True)  # of an interrupted attempt
    folder.rename(hidden)
    sync(folder.parent)  # else the deletion may reach the disk before the rename
    shutil.rmtree(hidden)


def has_space(folder: Path) -> bool:
    """Whether SPACE_BYTES can be written: a quota and inodes are in no number of free bytes."""
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(bytes(SPACE_BYTES))
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno not in (errno.ENOSPC, errno.EDQUOT)
    return True
