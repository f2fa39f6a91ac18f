"""Files that survive a crash of the machine. Standard library only."""

import os
import shutil
from pathlib import Path


def sync(path: Path) -> None:
    """Have a file, or a folder's entries, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(folder: Path) -> None:
    """Remove a folder so that it is whole for as long as it has its name, also after a crash."""
    hidden = folder.with_name(f".{folder.name}.removed")
    shutil.rmtree(hidden, ignore_errors=True)  # of an attempt that was broken off
    folder.rename(hidden)
    sync(folder.parent)  # else the disk may know of the deletion and not of the rename
    shutil.rmtree(hidden)
