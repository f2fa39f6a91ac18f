"""Paths on the control node: bundled files and the user's state folder."""

import contextlib
import fcntl
import itertools
import json
import logging
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from ftcluster.errors import FtclusterError
from ftcluster_common.given_files import FormatError

LOG = logging.getLogger(__name__)
T = TypeVar("T")
PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600
SHARED_FOLDER, SHARED_FILE = 0o755, 0o644  # restricted further by the user's umask


def bundled(folder: str) -> Path:
    """Return the path of a folder in the package: recipes or inventory."""
    installed = Path(str(resources.files("ftcluster"))) / folder
    checkout = Path(__file__).parents[2] / folder
    return installed if installed.is_dir() else checkout


def collection() -> Path:
    """Return the folder of the Ansible collection in the package."""
    beside = Path(str(resources.files("ftcluster"))).parent
    installed = beside / "ansible_collections" / "ftcluster" / "cluster"
    checkout = Path(__file__).parents[2]
    return installed if installed.is_dir() else checkout


def state_dir() -> Path:
    """Return `$XDG_STATE_HOME/ftcluster`, the folder of the saved clusters and run records."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "ftcluster"


def memory_dir() -> Path:
    """Return a folder for secrets: in memory, or on disk if no folder in memory can be used."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    for candidate in (runtime, "/dev/shm"):
        if candidate and os.access(candidate, os.W_OK):
            return Path(candidate)
    return Path(tempfile.gettempdir())


def plain_name(text: str) -> str:
    """Convert a string to a name of at most 40 letters, digits, dots, dashes and underscores.

    >>> plain_name("../my recipe")
    'my-recipe'
    """
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-.")[:40] or "unnamed"


def make_state_dir(path: Path) -> None:
    """Create a folder in the state folder, without access for other users."""
    make_folder(path)
    state_dir().chmod(PRIVATE_FOLDER)


@contextlib.contextmanager
def locked_state() -> Iterator[None]:
    """Hold the lock of the state folder, so that no other command changes it. Do not nest."""
    make_state_dir(state_dir())
    with (state_dir() / ".lock").open("w") as lock:
        with contextlib.suppress(OSError):  # the file system has no locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def read_state(path: Path, form: Callable[[Any], T]) -> T | None:
    """Return the content of a JSON file in the state folder, or None if there is no file.

    A damaged file does not stop the command. The file is renamed, a warning reports its new name,
    and the result is None.

    Args:
        form: function that converts the JSON document to the result. If it raises a ValueError,
            LookupError, TypeError or AttributeError, the file is damaged.

    Raises:
        FtclusterError: another version of ftcluster has written the file; it keeps its name.
    """
    try:
        return form(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except FormatError as error:
        raise FtclusterError(f"{path} {error}") from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        names = (f"{path.name}.damaged{number or ''}" for number in itertools.count())
        aside = next(free for name in names if not (free := path.with_name(name)).exists())
        with contextlib.suppress(FileNotFoundError):  # another command has already moved it
            path.rename(aside)
        why = " ".join(f"{error!r}"[:100].split())
        LOG.warning("note: %s is damaged (%s) and was renamed to %s", path, why, aside.name)
        return None


def write_atomically(path: Path, content: str | bytes, mode: int = PRIVATE_FILE) -> None:
    """Write a file atomically: even after a crash, readers never see an incomplete file.

    A device such as /dev/null or /dev/stdout is written to directly.

    Args:
        mode: permissions of the file before the umask. Use the default for files that contain rows,
            samples or models of the user, and `SHARED_FILE` for files that others may read.
    """
    data = content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file():
        with path.open("wb") as device:
            device.write(data)
        return
    make_folder(path.parent, PRIVATE_FOLDER if mode == PRIVATE_FILE else SHARED_FOLDER)
    partial = path.with_name(f".{path.name[:50]}.{secrets.token_hex(8)}")
    # here the kernel applies the umask; fchmod would not
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def make_folder(path: Path, mode: int = PRIVATE_FOLDER) -> None:
    """Create a folder and its missing parents; existing folders keep their permissions."""
    for folder in (*reversed(path.parents), path):
        if not folder.is_dir():
            folder.mkdir(mode, exist_ok=True)


def keep_private(folder: Path) -> None:
    """Deny all other users access to a new folder and its content."""
    for above, _, files in os.walk(folder):
        for path in (Path(above), *(Path(above, name) for name in files)):
            if not path.is_symlink():
                path.chmod(stat.S_IMODE(path.stat().st_mode) & 0o700)
