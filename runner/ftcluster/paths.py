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
    """Return the folder of recipes or inventories that the package contains."""
    installed = Path(str(resources.files("ftcluster"))) / folder
    checkout = Path(__file__).parents[2] / folder
    return installed if installed.is_dir() else checkout


def collection() -> Path:
    """Return the folder of the Ansible collection that the package contains."""
    beside = Path(str(resources.files("ftcluster"))).parent
    installed = beside / "ansible_collections" / "ftcluster" / "cluster"
    checkout = Path(__file__).parents[2]
    return installed if installed.is_dir() else checkout


def state_dir() -> Path:
    """Return `$XDG_STATE_HOME/ftcluster`, with the last cluster and the records of its runs."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "ftcluster"


def memory_dir() -> Path:
    """Return a folder in memory for secrets, or on disk if the system has none."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    for candidate in (runtime, "/dev/shm"):
        if candidate and os.access(candidate, os.W_OK):
            return Path(candidate)
    return Path(tempfile.gettempdir())


def plain_name(text: str) -> str:
    """Return a name of at most 40 letters, digits, dots, dashes and underscores.

    >>> plain_name("../my recipe")
    'my-recipe'
    """
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-.")[:40] or "unnamed"


def make_state_dir(path: Path) -> None:
    """Make a folder in the state folder, without access for other users."""
    make_folder(path)
    state_dir().chmod(PRIVATE_FOLDER)


@contextlib.contextmanager
def locked_state() -> Iterator[None]:
    """Prevent other commands from changing files of the state folder. Not to be nested."""
    make_state_dir(state_dir())
    with (state_dir() / ".lock").open("w") as lock:
        with contextlib.suppress(OSError):  # the file system has no locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def read_state(path: Path, form: Callable[[Any], T]) -> T | None:
    """Return the content of a JSON file of the state folder, or None if there is none.

    A damaged file neither stops the command nor is overwritten: a warning reports the new name
    under which it is kept, and the command continues without it.

    Args:
        form: function that makes the result from the document; ValueError, LookupError, TypeError
            and AttributeError mean that the file is damaged.

    Raises:
        FtclusterError: another version of ftcluster has written the file; it stays where it is.
    """
    try:
        return form(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except FormatError as error:
        raise FtclusterError(f"{path} {error}") from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        names = (f"{path.name}.damaged{number or ''}" for number in itertools.count())
        aside = next(one for name in names if not (one := path.with_name(name)).exists())
        with contextlib.suppress(FileNotFoundError):  # another command has already moved it
            path.rename(aside)
        why = " ".join(f"{error!r}"[:100].split())
        LOG.warning("note: %s is damaged (%s); kept as %s", path, why, aside.name)
        return None


def write_atomically(path: Path, content: str | bytes, mode: int = PRIVATE_FILE) -> None:
    """Write a file atomically: readers never see a part of it, even after a crash.

    Devices such as /dev/null or /dev/stdout are written to and not replaced.

    Args:
        mode: permissions of the file, which the umask restricts further. Files with rows, samples
            or models of the user keep the default; `SHARED_FILE` is for files that others may read.
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
    """Make a folder and its missing parents; existing folders keep their permissions."""
    for folder in (*reversed(path.parents), path):
        if not folder.is_dir():
            folder.mkdir(mode, exist_ok=True)


def keep_private(folder: Path) -> None:
    """Remove the permissions of all other users from a new folder and its content."""
    for above, _, files in os.walk(folder):
        for path in (Path(above), *(Path(above, name) for name in files)):
            if not path.is_symlink():
                path.chmod(stat.S_IMODE(path.stat().st_mode) & 0o700)
