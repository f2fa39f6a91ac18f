# Apache-2.0 (see LICENSE)
"""Checks a Python that the site installed on a host, before root executes it."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

from ansible_collections.ftcluster.cluster.plugins.module_utils.safe_path import (
    PATH_ONLY,
    RefusedPath,
    mounted_by,
    opened_parent,
    trusted,
    user_name,
    writers,
)

# modules that all stacks need, and that a Python lacks if it was built without certain libraries
MODULES = ("bz2", "ctypes", "lzma", "ssl", "zlib")
PROGRAM = f"""
import importlib, platform
missing = []
for name in {MODULES}:
    try:
        importlib.import_module(name)
    except ImportError:
        missing.append(name)
print(platform.python_implementation(), platform.python_version(), ",".join(missing))
"""
ANSWER = re.compile(r"(\w+) (\d[\w.+]*) ([\w,]*)\n")
ANOTHER = "name another Python with ftcluster_python, or unset ftcluster_python"


def given_python(
    path: str, has_root: bool, run: Callable[[list[str]], tuple[int, str, str]], account: str = ""
) -> str:
    """Check that a Python can be the base of a stack, and return its version.

    Args:
        path: path of the program.
        has_root: True if root will execute the program.
        run: function that runs a command and returns exit code, stdout and stderr.
        account: other account that will execute the program; "" for none.

    Raises:
        RefusedPath: the program does not exist, is not CPython, lacks modules that the stacks need,
            or could be changed by users other than root.
    """
    if not Path(path).is_absolute():
        raise RefusedPath(path, "is not an absolute path", "begin it with /")
    try:
        real = Path(path).resolve(strict=True)
        if not (real.is_file() and os.access(real, os.X_OK)):
            raise RefusedPath(path, "is not an executable file", ANOTHER)
        if has_root:
            _refuse_unguarded(path)
            for part in (real, *_library(real)):
                if account:
                    _refuse_unreachable(part, account)
                _refuse_unguarded(part)
                device = part.stat().st_dev
                for below in part.rglob("*"):
                    _refuse_writable(below, device)
    except RefusedPath:
        raise
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a loop
        words = getattr(error, "strerror", None) or str(error)
        raise RefusedPath(path, f"cannot be inspected: {words}", ANOTHER) from error
    code, out, err = run([path, "-I", "-B", "-c", PROGRAM])
    answer = ANSWER.fullmatch(out)
    if code != 0 or answer is None:
        said = ((err or out).strip().splitlines() or [f"exit code {code}"])[-1]
        raise RefusedPath(path, f"does not run: {said}", ANOTHER)
    kind, version, missing = answer.groups()
    if kind != "CPython":
        raise RefusedPath(path, f"is {kind}, but the wheels are built for CPython", ANOTHER)
    if missing:
        raise RefusedPath(
            path,
            f"lacks the modules {missing.replace(',', ', ')}, which the stacks import",
            "rebuild it with the headers of these modules' libraries, or name another Python",
        )
    return version


def _library(program: Path) -> dict[Path, None]:
    """Return the folders and shared libraries that a Python uses when it runs."""
    top = program.parents[1]
    patterns = ("python3.*", "libpython3*.so*")
    found = [
        path.resolve()
        for folder in ("lib", "lib64")
        for pattern in patterns
        for path in sorted((top / folder).glob(pattern))
    ]
    if not any(path.is_dir() for path in found):
        raise RefusedPath(program, f"has no lib/python3.* in {top}", ANOTHER)
    return dict.fromkeys(found)


def _refuse_unguarded(path: str | Path) -> None:
    """Raise an error if another user could replace the file or a folder in its path."""
    with opened_parent(path, guarded=True) as (folder, name):
        _refuse_writers(path, name, os.fstat(folder).st_dev, folder)


def _refuse_writable(path: Path, device: int) -> None:
    """Raise an error if another user could have written a file below a folder on `device`."""
    if not path.is_symlink():
        _refuse_writers(path, path, device)
    elif path.exists():
        _refuse_unguarded(path)


def _refuse_writers(
    path: str | Path, name: str | Path, device: int, folder: int | None = None
) -> None:
    descriptor = os.open(name, PATH_ONLY, dir_fd=folder)
    try:
        state = os.fstat(descriptor)
        who, fix = "users other than root", writers(descriptor, state, (0,))
        if not trusted(state.st_uid):
            who, fix = user_name(state.st_uid), "chown root"
        elif user := mounted_by(descriptor, state, device):
            who, fix = user, "umount"
    finally:
        os.close(descriptor)
    if fix:
        raise RefusedPath(
            path,
            f"{who} may change it, and root would execute it",
            f"sudo {fix} {path}, or {ANOTHER}",
        )


def _refuse_unreachable(path: Path, account: str) -> None:
    """Raise an error if the training account cannot execute or read the program."""
    for part in (path, *path.parents):
        needed = stat.S_IXOTH if part.is_dir() else stat.S_IROTH
        if not part.stat().st_mode & needed:
            raise RefusedPath(
                part,
                f"the training account {account} may not read it",
                "copy the Python to a folder that all accounts may read, such as /opt",
            )
