"""The checkpoint from which a script may resume after a restart. Standard library only."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

LEVELS = 3  # below the folder that the script starts in
COMPLETE = "trainer_state.json"  # transformers' Trainer writes it last


def mark_start(run_dir: Path) -> None:
    """Remember when the script was first started on this host."""
    with contextlib.suppress(OSError):  # another rank of this host has done it, or the disk is full
        (run_dir / "started").touch(exist_ok=False)


def last_checkpoint(run_dir: Path, folder: Path) -> str:
    """The newest complete checkpoint of transformers' Trainer that the run has written here; or "".

    `folder`, where the script starts, may also have checkpoints of other trainings.
    """
    try:
        since = (run_dir / "started").stat().st_mtime_ns
    except OSError:  # the first start on this host
        return ""
    found = [one for one in _checkpoints(folder) if one[0] > since]
    return str(max(found)[1]) if found else ""


def _checkpoints(folder: Path) -> Iterator[tuple[int, Path]]:
    """When each checkpoint below a folder was complete."""
    for level in range(LEVELS):
        for path in folder.glob("*/" * level + "checkpoint-*"):
            with contextlib.suppress(OSError):  # it is not complete, or is being removed
                if path.name.removeprefix("checkpoint-").isdecimal():
                    yield (path / COMPLETE).stat().st_mtime_ns, path
