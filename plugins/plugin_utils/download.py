# Apache-2.0 (see LICENSE)
"""Downloads wheels with the control node's pip, whose own configuration counts."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass, field
from email.parser import HeaderParser
from pathlib import Path

from ansible_collections.ftcluster.cluster.plugins.plugin_utils.lock import (
    linux_environment,
    normal,
)
from packaging.requirements import InvalidRequirement, Requirement

# PEP 600: a wheel for glibc 2.N runs on 2.N and newer; 2.5 is manylinux1's, the oldest
OLDEST_GLIBC_MINOR = 5
LEGACY_TAGS = ("manylinux2014", "manylinux2010", "manylinux1")
LAST_LINES = 8
PREFERRED_SECONDS = 15  # without an answer for so long, an index that is only preferred is given up


class DownloadError(Exception):
    """Wheels cannot be had; says why and what to do."""


@dataclass(frozen=True)
class Target:
    """What a wheel must fit to.

    Attributes:
        python: the Python's version, e.g. "3.11".
        glibc: the C library's version, e.g. "2.36".
        machine: the architecture, e.g. "x86_64".
    """

    python: str
    glibc: str
    machine: str

    @property
    def tag(self):
        """A folder name."""
        return f"cp{self.python.replace('.', '')}-glibc{self.glibc}-{self.machine}"

    def pip_options(self):
        """The options that make pip choose as it would on the host."""
        minor = int(self.glibc.split(".")[1])
        tags = [f"manylinux_2_{n}" for n in range(minor, OLDEST_GLIBC_MINOR - 1, -1)]
        options = [
            "--only-binary=:all:",
            "--implementation=cp",
            f"--python-version={self.python}",
        ]
        options += [f"--platform={tag}_{self.machine}" for tag in (*tags, *LEGACY_TAGS, "linux")]
        return options


@dataclass(frozen=True)
class Sources:
    """Where wheels come from, on top of pip's own configuration.

    Attributes:
        index_url: the package index, "" for the one that pip is configured to use.
        find_links: folders or pages with wheels.
        indexes: indexes of single packages, by name; they are tried first.
    """

    index_url: str = ""
    find_links: tuple[str, ...] = ()
    indexes: dict[str, str] = field(default_factory=dict)

    def pip_options(self):
        """The options for all packages without an index of their own."""
        options = [f"--index-url={self.index_url}"] if self.index_url else []
        return options + [f"--find-links={place}" for place in self.find_links]


@dataclass(frozen=True)
class Pip:
    """pip as it is called here.

    Attributes:
        target: what the wheels must fit to.
        sources: where they come from.
        folder: where they go.
    """

    target: Target
    sources: Sources
    folder: Path

    def download(self, pins, with_dependencies=False):
        """Download packages; those with an index of their own from there, if it has them.

        Args:
            pins: a Pin or anything with name and version, each.
            with_dependencies: also what they need, in versions that pip chooses.

        Returns:
            {name: what pip said} of those whose own index did not give them.

        Raises:
            DownloadError: no source gives one of them.
        """
        refused = {}
        remaining = []
        for pin in pins:
            index = self.sources.indexes.get(pin.name, "")
            words = self._from_index(pin, index) if index else ""
            if words:
                refused[pin.name] = f"{index}: {words}"
            # with dependencies pip must see all of them together to agree on versions
            if words or not index or with_dependencies:
                remaining.append(f"{pin.name}=={pin.version}")
        if remaining:
            options = [*self.sources.pip_options(), f"--find-links={self.folder}"]
            done = self._run(remaining, options, with_dependencies)
            if done.returncode != 0:
                raise DownloadError(complaint(done.stderr, self.target, refused))
        return refused

    def _from_index(self, pin, index):
        """Download one package from an index of its own; what pip said where it failed, or ""."""
        kind = "--index-url" if "://" in index else "--find-links"
        options = [f"{kind}={index}", "--retries=0", f"--timeout={PREFERRED_SECONDS}"]
        done = self._run([f"{pin.name}=={pin.version}"], options, with_dependencies=False)
        return "" if done.returncode == 0 else reason(done.stderr)

    def _run(self, requirements, options, with_dependencies):
        command = [
            *pip_command(), "download", "--quiet", "--no-input", "--disable-pip-version-check",
            *self.target.pip_options(), *([] if with_dependencies else ["--no-deps"]), *options,
            "--dest", str(self.folder), *requirements,
        ]  # fmt: skip
        return subprocess.run(
            command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )


def needs(folder, names, python):
    """Which of some packages the wheels of a folder ask for.

    Args:
        folder: with wheels.
        names: the packages that matter, as PEP 503 compares names.
        python: the minor version of the hosts' Python.
    """
    environment = linux_environment(python)
    found = set()
    for path in folder.glob("*.whl"):
        for line in _requires(path):
            try:
                requirement = Requirement(line)
            except InvalidRequirement:
                continue  # uv complains on the host, with the package's name
            if normal(requirement.name) in names and (
                requirement.marker is None or requirement.marker.evaluate(environment)
            ):
                found.add(normal(requirement.name))
    return found


def _requires(wheel):
    try:
        with zipfile.ZipFile(wheel) as archive:
            name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
            text = archive.read(name).decode("utf-8", errors="replace")
    except (zipfile.BadZipFile, StopIteration) as error:
        raise DownloadError(
            f"{wheel.name} is no wheel: {error or 'it has no metadata'}; see what its source gives"
        ) from error
    return HeaderParser().parsestr(text).get_all("Requires-Dist", [])


def unpacked_bytes(wheel):
    """The size of a wheel's files.

    Raises:
        DownloadError: it is not a zip file.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            return sum(entry.file_size for entry in archive.infolist())
    except zipfile.BadZipFile as error:
        raise DownloadError(f"{wheel.name} is no wheel: {error}") from error


def reason(stderr):
    """The most telling line of what pip said."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    for mark in ("Retrying (", "Skipping page", "403", "404", "ERROR: Could not", "ERROR:"):
        for line in lines:
            if mark in line:
                return line.partition(": ")[2] or line
    return lines[-1] if lines else "pip failed without a word"


def complaint(stderr, target, refused):
    """What pip says, without warnings that explain nothing, and what can be done."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    # of warnings, only these tell why there is "no matching distribution"
    telling = [
        line
        for line in lines
        if "WARNING" not in line or "Retrying (Retry(total=0" in line or "Skipping page" in line
    ]
    own = [f"{name}: {words}" for name, words in refused.items()]
    return (
        f"the control node cannot download the wheels for Python {target.python} and glibc "
        f"{target.glibc}: " + "\n".join([*telling[-LAST_LINES:], *own]).strip() + "\n"
        "see that pip on the control node reaches a package index (pip config list), or set "
        "torch_stack_index_url, torch_stack_find_links or torch_stack_indexes, or bring a bundle: "
        "ftcluster bundle on a machine that reaches one, then ftcluster setup --bundle FILE"
    )


def pip_command():
    """A pip of the control node: that of Ansible's own Python, else the system's.

    Raises:
        DownloadError: there is none.
    """
    for python in (sys.executable, shutil.which("python3")):
        if python:
            command = [python, "-m", "pip"]
            tried = subprocess.run([*command, "--version"], capture_output=True, check=False)
            if tried.returncode == 0:
                return command
    raise DownloadError(f"there is no pip beside {sys.executable}; install python3-pip")
