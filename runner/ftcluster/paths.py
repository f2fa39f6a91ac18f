"""Where things are on the control node: bundled files and the user's state folder."""

import os
import tempfile
from importlib import resources
from pathlib import Path


def bundled(folder: str) -> Path:
    """The folder of recipes or inventories that came with the package."""
    installed = Path(str(resources.files("ftcluster"))) / folder
    checkout = Path(__file__).parents[2] / folder
    return installed if installed.is_dir() else checkout


def collection() -> Path:
    """The folder of the Ansible collection that came with the package."""
    beside = Path(str(resources.files("ftcluster"))).parent
    installed = beside / "ansible_collections" / "ftcluster" / "cluster"
    checkout = Path(__file__).parents[2]
    return installed if installed.is_dir() else checkout


def state_dir() -> Path:
    """`$XDG_STATE_HOME/ftcluster`: the last cluster and the records of its runs."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "ftcluster"


def memory_dir() -> Path:
    """A folder for files that should not reach a disk, where the system has one."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    for candidate in (runtime, "/dev/shm"):
        if candidate and os.access(candidate, os.W_OK):
            return Path(candidate)
    return Path(tempfile.gettempdir())


def write_atomically(path: Path, text: str) -> None:
    """Write a file that a reader sees either as it was or whole, also after a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), 0o644)  # mkstemp makes it private
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
