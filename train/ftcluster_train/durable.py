"""Files that survive a crash of the machine. Standard library only."""

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Have a file, or a folder's entries, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
