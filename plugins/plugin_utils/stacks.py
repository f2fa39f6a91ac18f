# Apache-2.0 (see LICENSE)
"""Reads the files in the role torch_stack that define the stacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.shallow_yaml import parse_yaml
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.wheelhouse import Wanted

# packages that install wheels and start ranks; added to stacks without a lock
TOOLS = {"uv": "0.13.9", "impi-rt": "2021.18.1", "mpi4py": "4.1.2"}


class StacksFileError(Exception):
    """A file cannot be read; the message names it."""


def read_stacks(folder: Path) -> dict[str, Any]:
    """Return the contents of stacks.yml.

    Raises:
        StacksFileError: the file cannot be read.
    """
    return _read(folder / "stacks.yml")


def read_advisories(folder: Path) -> dict[str, Any]:
    """Return the contents of advisories.yml.

    Raises:
        StacksFileError: the file cannot be read.
    """
    return _read(folder / "advisories.yml")


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise StacksFileError(f"{path}: {error}") from error
    return found


@dataclass(frozen=True)
class Lists:
    """The lists of packages to download for a stack.

    Attributes:
        requirements: path of the lock, or of the package list of a stack without a lock.
        more: path of a second lock with packages that only torch's CUDA build requires, or None.
        resolve: True if pip adds dependencies.
        allow_unverified: True if files without a hash are accepted.
    """

    requirements: Path
    more: Path | None = None
    resolve: bool = False
    allow_unverified: bool = False

    @property
    def wanted(self) -> Wanted:
        """Read the lists and return their contents.

        Raises:
            StacksFileError: a file cannot be read.
        """
        try:
            more = self.more.read_text(encoding="utf-8") if self.more else ""
            text = self.requirements.read_text(encoding="utf-8")
            return Wanted(self.requirements.stem, text, more, self.resolve, self.allow_unverified)
        except OSError as error:
            raise StacksFileError(f"{error.filename}: {error.strerror}") from error


def lists_of(
    folder: Path,
    document: Mapping[str, Any],
    name: str,
    cache: Path,
    allow_unverified: bool = False,
) -> Lists:
    """Return the lists of a stack; write the list of a stack that has no lock.

    Args:
        folder: folder with stacks.yml and the locks.
        cache: folder for the list of a stack that has no lock.
        allow_unverified: True if files without a hash are accepted.

    Raises:
        StacksFileError: a file cannot be written.
    """
    lock, more = folder / f"{name}.txt", folder / f"{name}-cuda.txt"
    if lock.exists():
        return Lists(lock, more if more.exists() else None, allow_unverified=allow_unverified)
    packages = {**TOOLS, **document["stacks"][name]["packages"]}
    written = cache / f"{name}.txt"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        lines = "".join(f"{package}=={version}\n" for package, version in packages.items())
        written.write_text(lines, encoding="utf-8")
    except OSError as error:
        raise StacksFileError(f"{error.filename}: {error.strerror}") from error
    return Lists(written, resolve=True, allow_unverified=allow_unverified)
