"""Writes files so that they survive a crash of the machine. Standard library only."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# values for os.umask, which decide which other accounts may read a run's files on a host
ACCOUNT_ONLY = 0o077  # tokenized data, and downloads with a user's token
GROUP_READS = 0o027  # logs, events and models, which the account's group may read
SPACE_BYTES = 1 << 20  # disk space that events and a launch need


def sync(path: Path) -> None:
    """Flush a file, or the list of entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Flush a folder and everything in it to disk."""
    for path in (*folder.rglob("*"), folder):
        sync(path)


def write_atomically(path: Path, text: str) -> None:
    """Write a file atomically: readers never see a partial file, even after a crash."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    except OSError:  # for example a full disk
        partial.unlink(missing_ok=True)
        raise
    sync(path.parent)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder; rename it to `folder` after its content is on the disk.

    An existing folder of that name is replaced. It is either damaged, or restarted ranks have
    repeated the steps and write the same content again.
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
    """Remove partially written or removed folders that killed processes have left in `folder`."""
    for path in (*folder.glob("*.partial"), *folder.glob(".*.removed")):
        shutil.rmtree(path, ignore_errors=True)


def remove(folder: Path) -> None:
    """Rename a folder and then remove it, so that a crash leaves no partial folder of that name."""
    hidden = folder.with_name(f".{folder.name}.removed")
    shutil.rmtree(hidden, ignore_errors=True)  # left by an interrupted attempt
    folder.rename(hidden)
    sync(folder.parent)  # otherwise the deletion may reach the disk before the rename
    shutil.rmtree(hidden)


def has_space(folder: Path) -> bool:
    """Return True unless the file system of a folder is too full to write SPACE_BYTES.

    The function writes a file, because the reported free space ignores quotas and inodes.
    """
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(bytes(SPACE_BYTES))
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno not in (errno.ENOSPC, errno.EDQUOT)
    return True
