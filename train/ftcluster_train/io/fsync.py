"""Files that survive a crash of the machine. Standard library only."""

import os
import shutil
from pathlib import Path


def sync(path: Path) -> None:
    """Write a file, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(folder: Path) -> None:
    """Remove a folder: renamed first, so that a crash leaves no incomplete folder of its name."""
    hidden = folder.with_name(f".{folder.name}.removed")
    shutil.rmtree(hidden, ignore_errors=True)  # of an interrupted attempt
    folder.rename(hidden)
    sync(folder.parent)  # else the deletion may reach the disk before the rename
    shutil.rmtree(hidden)
