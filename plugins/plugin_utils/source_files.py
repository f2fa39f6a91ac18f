# Apache-2.0 (see LICENSE)
"""Finds the files in a folder on the control node that is copied to hosts.

The folder may come from another user. Links in it must not lead to files outside of the folder, and
pipes and devices must not be read.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from io import BufferedReader
from pathlib import Path

HUB = re.compile(r"(models|datasets|spaces)--.+")  # a repository's folder in the Hub's cache
MAX_FILES = 1_000_000  # with links to folders, a folder can be endless
MOST_NAMED = 10
KINDS = {
    stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device", stat.S_IFDIR: "a folder", stat.S_IFLNK: "a link",
}  # fmt: skip


class SourceError(Exception):
    """Files of a folder cannot be copied; the message names them."""


def source_files(source: Path) -> list[tuple[Path, str]]:
    """Return the files of a folder, or the one file that the user has named.

    Follow links within the folder. In a snapshot of the Hub's cache, also follow links to the blobs
    of the same repository. Skip dangling links, such as an editor's lock.

    Returns:
        (path without links, name in the folder) of each file, sorted by name.

    Raises:
        SourceError: a link leads out of the folder, or a file is not regular or cannot be read; the
            message names all such files.
    """
    try:
        root = source.resolve(strict=True)
        if root.is_dir():
            return named_files(source, None)
        with open_file(root):
            return [(root, source.name)]
    except (OSError, RuntimeError) as error:
        raise SourceError(f"{source} cannot be read: {words_of(error)}") from error


def named_files(source: Path, names: Iterable[str] | None) -> list[tuple[Path, str]]:
    """Return the files of a folder with these names, or all files if `names` is None.

    Return and raise the same as `source_files`.
    """
    root = source.resolve()
    walk = _Walk((root, *_blobs(root)))
    if names is None:
        walk.folder(root, "", ())
    for name in names or ():
        walk.entry(root / name, name, ())
    if walk.problems:
        named = [*walk.problems[:MOST_NAMED]]
        if len(walk.problems) > MOST_NAMED:
            named.append(f"and {len(walk.problems) - MOST_NAMED} more")
        raise SourceError(
            "\n  ".join([f"{source} cannot be copied:", *named])
            + "\nreplace links by copies, and remove everything that is not a regular file"
        )
    return sorted(walk.found, key=lambda pair: pair[1])


def open_file(path: Path) -> BufferedReader:
    """Open a regular file for reading, without following a link in any part of its path.

    Args:
        path: absolute path.

    Raises:
        OSError: a part of the path is a link, or the file is not regular or cannot be read.
    """
    folder = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        *parts, name = path.parts[1:]
        for part in parts:
            flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            inner = os.open(part, flags, dir_fd=folder)
            os.close(folder)
            folder = inner
        # otherwise, opening a pipe blocks, and a terminal could become our controlling terminal
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        file = os.open(name, flags, dir_fd=folder)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(folder)
    kind = stat.S_IFMT(os.fstat(file).st_mode)
    if kind != stat.S_IFREG:
        os.close(file)
        raise OSError(0, f"is {KINDS.get(kind, 'not a regular file')}", str(path))
    return os.fdopen(file, "rb")


def words_of(error: Exception) -> str:
    """Return the reason in a read error, without the path."""
    return getattr(error, "strerror", None) or str(error)


def _blobs(root: Path) -> list[Path]:
    """Return the folder of blobs if `root` is a snapshot in the Hub's cache, else nothing."""
    for folder in (root, *root.parents):
        if folder.parent.name == "snapshots" and HUB.fullmatch(folder.parent.parent.name):
            return [folder.parent.parent / "blobs"]
    return []


class _Walk:
    """A walk through a folder that collects files and problems.

    Args:
        roots: the folder, and other folders to which links in the folder may lead.
    """

    def __init__(self, roots: tuple[Path, ...]) -> None:
        self.roots = roots
        self.found: list[tuple[Path, str]] = []
        self.problems: list[str] = []
        self.seen = 0

    def folder(self, folder: Path, prefix: str, above: tuple[Path, ...]) -> None:
        try:
            entries = sorted(folder.iterdir())
        except OSError as error:
            self.problems.append(f"{prefix or folder}: cannot be read: {error.strerror}")
            return
        for path in entries:
            self.seen += 1
            if self.seen > MAX_FILES:
                self.problems = [f"it contains more than {MAX_FILES:,} files and folders"]
                return
            self.entry(path, f"{prefix}{path.name}", (*above, folder))

    def entry(self, path: Path, name: str, above: tuple[Path, ...]) -> None:
        """Process one entry of a folder.

        Args:
            above: folders in the path from the root to the entry.
        """
        try:
            real = path.resolve(strict=True)
            kind = stat.S_IFMT(real.lstat().st_mode)
        except (OSError, RuntimeError) as error:
            if not path.is_symlink():
                self.problems.append(f"{name!a}: {words_of(error)}")
            return
        if not any(real.is_relative_to(root) for root in self.roots):
            leads = f" -> {str(path.readlink())!a}" if path.is_symlink() else ""
            self.problems.append(f"{name!a}{leads}: leads out of the folder")
        elif kind == stat.S_IFDIR:
            if real not in above:
                self.folder(real, f"{name}/", above)
        elif kind != stat.S_IFREG:
            self.problems.append(f"{name!a}: is {KINDS.get(kind, 'not a regular file')}")
        elif not os.access(real, os.R_OK):
            self.problems.append(f"{name!a}: cannot be read: Permission denied")
        else:
            self.found.append((real, name))
