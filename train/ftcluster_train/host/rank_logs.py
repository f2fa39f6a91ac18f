"""The logs of a run's ranks: bounded in size. Standard library only."""

import contextlib
from pathlib import Path

LIMIT_BYTES = 32 << 20  # of a file; the one before it is kept as NAME.1


def append(path: Path, data: bytes, limit_bytes: int = LIMIT_BYTES) -> None:
    """Append to a log; one that is full is renamed first. A full disk loses the data."""
    with contextlib.suppress(OSError):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size + len(data) > limit_bytes:
                path.replace(path.with_name(f"{path.name}.1"))
        with path.open("ab") as file:
            file.write(data)
