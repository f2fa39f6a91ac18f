"""Chooses the files of a script's folder that are copied to the hosts."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ftcluster.errors import UsageError
from ftcluster.paths import plain_name
from ftcluster.text.printable import is_unicode

MAX_FILES = 10_000
MAX_BYTES = 1_000_000_000
MOST_NAMED = 5
# files and folders created by tools
JUNK = {
    ".git", ".hg", ".svn", "__pycache__", ".venv", "venv", "node_modules", ".mypy_cache",
    ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints", ".tox", ".nox", ".eggs", ".idea",
    ".vscode", ".DS_Store",
}  # fmt: skip
JUNK_ENDINGS = (".pyc", ".pyo", ".swp", "~")
SYSTEM = ("/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/proc", "/root", "/run", "/sbin",
          "/sys", "/tmp", "/usr", "/var", "/var/tmp")  # fmt: skip
ADVICE = "put the script and its files into a separate folder"


@dataclass(frozen=True)
class Copied:
    """The files of a folder that are copied.

    Attributes:
        files: sorted paths relative to the folder.
        size_bytes: total size in bytes.
        left_out: files and folders created by tools, which are not copied.
    """

    folder: Path
    files: tuple[str, ...]
    size_bytes: int
    left_out: tuple[str, ...]

    @property
    def name(self) -> str:
        """A name with a hash of the files' names, contents and modes, such as glue-4f7d1c0b2a9e.

        Raises:
            UsageError: a file cannot be read.
        """
        digest = hashlib.sha256()
        for name in self.files:
            path = self.folder / name
            try:
                with path.open("rb") as file:
                    mode = os.fstat(file.fileno()).st_mode & 0o777
                    digest.update(os.fsencode(f"{name}\0{mode}\0"))
                    digest.update(hashlib.file_digest(file, "sha256").digest())
            except OSError as error:
                raise UsageError(f"{path} cannot be read: {error.strerror}", ADVICE) from None
        return f"{plain_name(self.folder.name)}-{digest.hexdigest()[:12]}"


def choose_files(folder: Path, home: Path | None = None) -> Copied:
    """Choose the files of a script's folder, except files created by tools.

    Links to targets within the folder are followed.

    Args:
        folder: absolute path without links.
        home: the user's home folder, which is never copied as a whole.

    Raises:
        UsageError: the folder is a system or home folder, too large or unreadable, or contains
            links to targets outside of it.
    """
    if str(folder) in SYSTEM or folder == home:
        raise UsageError(
            f"the script is in {folder}; a home or system folder is not copied as a whole",
            ADVICE,
        )
    left_out: list[str] = []
    leaving: list[str] = []
    files: list[str] = []
    sizes: dict[str, int] = {}
    for name in _walk(folder, folder, "", (), left_out, leaving):
        files.append(name)
        top = name.split("/")[0]
        sizes[top] = sizes.get(top, 0) + (folder / name).stat().st_size
        if len(files) > MAX_FILES:
            _refuse(folder, f"contains more than {MAX_FILES:,} files, too many to copy", ())
    if leaving:
        hint = "replace the links by copies, or pass paths to the script that exist on every host"
        _refuse(folder, "contains links to targets outside of it", leaving, hint)
    odd = [ascii(name) for name in files if not is_unicode(name)]
    if odd:
        _refuse(folder, "contains files whose names are not UTF-8", odd)
    size = sum(sizes.values())
    if size > MAX_BYTES:
        largest = sorted(sizes, key=lambda top: -sizes[top])[:MOST_NAMED]
        listed = ", ".join(f"{top} {sizes[top] / 1e6:,.0f} MB" for top in largest)
        limit = f"too much to copy (at most {MAX_BYTES / 1e6:,.0f} MB); largest: {listed}"
        hint = f"{ADVICE}; put large data on every host or a shared file system"
        _refuse(folder, f"contains {size / 1e6:,.0f} MB, {limit}", (), hint)
    return Copied(folder, tuple(sorted(files)), size, tuple(sorted(left_out)))


def _refuse(folder: Path, what: str, names: Sequence[str], hint: str = ADVICE) -> None:
    lines = [f"the script's folder {folder} {what}", *names[:MOST_NAMED]]
    if len(names) > MOST_NAMED:
        lines.append(f"and {len(names) - MOST_NAMED} more")
    raise UsageError("\n  ".join(lines), hint)


def _walk(
    root: Path, folder: Path, prefix: str, above: tuple[Path, ...], left_out: list[str],
    leaving: list[str],
) -> Iterator[str]:  # fmt: skip
    """Yield the files below a folder.

    Files created by tools are added to `left_out`, and links to targets outside of `root` are added
    to `leaving`.
    """
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror}", ADVICE) from None
    if prefix and any(entry.name == "pyvenv.cfg" for entry in entries):
        left_out.append(prefix.removesuffix("/"))
        return
    for entry in entries:
        name = f"{prefix}{entry.name}"
        path = Path(entry.path)
        if entry.name in JUNK or entry.name.endswith(JUNK_ENDINGS):
            left_out.append(name)
        elif entry.is_symlink():
            target = _target(path)
            if target is None:
                continue  # a broken link, such as the lock of an editor
            if not target.is_relative_to(root):
                leaving.append(f"{name} -> {path.readlink()}")
            elif target.is_dir() and target not in (*above, folder):
                yield from _walk(root, target, f"{name}/", (*above, folder), left_out, leaving)
            elif target.is_file():
                yield name
        elif entry.is_dir():
            yield from _walk(root, path, f"{name}/", (*above, folder), left_out, leaving)
        elif entry.is_file():
            yield name


def _target(link: Path) -> Path | None:
    """Return the target of a link, or None if the link is broken."""
    try:
        return link.resolve(strict=True)
    except (OSError, RuntimeError):
        return None
