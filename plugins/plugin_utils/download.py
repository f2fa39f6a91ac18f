# Apache-2.0 (see LICENSE)
"""Downloads wheels with the control node's pip, whose own configuration counts."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from email.parser import HeaderParser
from itertools import dropwhile, takewhile
from pathlib import Path
from urllib.parse import unquote

from ansible_collections.ftcluster.cluster.plugins.module_utils.fetch_errors import redacted
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.lock import Pin, linux_environment
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.pip_words import (
    LAST_LINES,
    UNFETCHED,
    complaint,
    known_cause,
    reason,
    telling,
)
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import (
    NormalizedName,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

# PEP 600: a wheel for glibc 2.N runs on 2.N and newer; 2.5 is manylinux1's, the oldest
OLDEST_GLIBC_MINOR = 5
LEGACY_TAGS = ("manylinux2014", "manylinux2010", "manylinux1")
OWN_METADATA = re.compile(r"[^/]+\.dist-info/METADATA")
# of pip's log: a package without a wheel that suits, the same with sources, and who needs it
NO_WHEEL = re.compile(r"hashes to check 0 links for project '([^']+)'")
SOURCES = re.compile(r"No sources permitted for [^\s:]+: ([^\s#?]+)")
WHEELS = re.compile(r"Found link ([^\s#?]+\.whl)[#?\s,]")
REQUIRES_PYTHON = re.compile(r"\(requires-python:([^)]*)\)")
NEEDED = re.compile(r"(?:depends on|No matching distribution found for|requested) (.+)")
CONFLICT = "The conflict is caused by:"
# variables of a session, of pip, of TLS and proxies, and of compilers
PIP_NEEDS = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|TZ|TMPDIR|LANG|LANGUAGE|LC_\w+|XDG_\w+|PIP_\w+|NETRC"
    r"|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|(https?|all|no|ftp)_proxy"
    r"|(HTTPS?|ALL|NO|FTP)_PROXY|LD_LIBRARY_PATH|LIBRARY_PATH|CPATH|C(PLUS)?_INCLUDE_PATH"
    r"|PKG_CONFIG(_PATH)?|CC|CXX|FC|AR|LD|CFLAGS|CXXFLAGS|CPPFLAGS|LDFLAGS|MAKE(FLAGS)?|MAX_JOBS"
    r"|CMAKE_\w+|CARGO_HOME|RUSTUP_HOME|RUSTFLAGS|CUDA_HOME|SOURCE_DATE_EPOCH"
)
PREFERRED_SECONDS = 15  # without an answer for so long, an index that is only preferred is given up


class DownloadError(Exception):
    """Wheels cannot be downloaded; says why and what to do."""


@dataclass(frozen=True)
class Target:
    """What a wheel must be compatible with.

    Attributes:
        python: the Python's version, e.g. "3.11".
        glibc: the C library's version, e.g. "2.36".
        machine: the architecture, e.g. "x86_64".
    """

    python: str
    glibc: str
    machine: str

    def __post_init__(self) -> None:
        """Reject what must not get into a folder's name and pip's options.

        Raises:
            ValueError: names the value.
        """
        given = f"{self.python} {self.glibc} {self.machine}"
        if not re.fullmatch(r"\d+\.\d+ \d+\.\d+ \w+", given):
            raise ValueError(f"not a Python, glibc and machine: {given!a}")

    @property
    def tag(self) -> str:
        """A folder name."""
        return f"cp{self.python.replace('.', '')}-glibc{self.glibc}-{self.machine}"

    def runs_wheels_of(self, name: str) -> bool:
        """Whether all wheels for another target run on this one.

        Args:
            name: of a folder; it ends with that target's tag.

        >>> Target("3.11", "2.41", "x86_64").runs_wheels_of("native-1b2c-cp311-glibc2.36-x86_64")
        True
        """
        kind = f"-cp{self.python.replace('.', '')}-glibc"
        found = re.search(rf"{re.escape(kind)}(\d+)\.(\d+)-{self.machine}$", name)
        own = tuple(map(int, self.glibc.split(".")))
        return found is not None and tuple(map(int, found.groups())) <= own

    def pip_options(self) -> list[str]:
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

    def pip_options(self) -> list[str]:
        """The options for all packages without an index of their own."""
        options = [f"--index-url={self.index_url}"] if self.index_url else []
        return options + [f"--find-links={place}" for place in self.find_links]


@dataclass(frozen=True)
class DownloadOutcome:
    """How a download of a file's requirements ended.

    Attributes:
        problem: why there are no wheels that go together, or "".
        lacking: requirements of packages that have sources, but no wheel in such a version. Where
            there is no problem, pip has taken older versions of the packages that need them.
        sources: versions that it saw sources of, by normalized name.
        wheels: versions that it saw a suitable wheel of, by normalized name.
    """

    problem: str
    lacking: tuple[Requirement, ...]
    sources: dict[str, frozenset[Version]]
    wheels: dict[str, frozenset[Version]]


@dataclass(frozen=True)
class Pip:
    """Downloads wheels for a target from sources into a folder."""

    target: Target
    sources: Sources
    folder: Path

    def download(self, pins: Iterable[Pin], with_dependencies: bool = False) -> dict[str, str]:
        """Download packages, preferably from an index of their own.

        Args:
            pins: a Pin or anything with name and version, each.
            with_dependencies: also their dependencies, in versions that pip chooses.

        Returns:
            {name: pip's message} of those whose own index did not have them.

        Raises:
            DownloadError: no source has one of them.
        """
        refused = {}
        remaining = []
        pins = list(pins)
        for pin in pins:
            index = self.sources.indexes.get(pin.name, "")
            words = self._from_index(pin, index) if index else ""
            if words:
                refused[pin.name] = f"{redacted(index)}: {words}"
            # with dependencies pip must see all of them together to agree on versions
            if words or not index or with_dependencies:
                remaining.append(f"{pin.name}=={pin.version}")
        if remaining:
            options = [*self.sources.pip_options(), f"--find-links={self.folder}"]
            done, lines, _ = self._run(remaining, options, with_dependencies)
            if not done:
                names = {pin.name for pin in pins}
                raise DownloadError(complaint(lines, self.target, refused, names, os.environ))
        return refused

    def try_one(self, pin: Pin) -> str:
        """Why the configured sources do not give a package, as a message; "" if they do.

        Also where one is only slow to answer, for which a download has more patience.
        """
        options = [*self.sources.pip_options(), "--retries=1", f"--timeout={PREFERRED_SECONDS}"]
        done, lines, _ = self._run([f"{pin.name}=={pin.version}"], options, with_dependencies=False)
        if done or any("timed out" in line and "proxy" not in line for line in lines):
            return ""
        return complaint(lines, self.target, {}, {pin.name}, os.environ)

    def download_file(self, requirements: Path, constraints: Path) -> DownloadOutcome:
        """Download what a file of requirements asks for, with dependencies, within constraints.

        Both are files, because there may be credentials in them.
        """
        words = [f"--requirement={requirements}", f"--constraint={constraints}"]
        done, lines, log = self._run(words, self.sources.pip_options(), with_dependencies=True)
        said = known_cause("\n".join(lines), os.environ) or "\n".join(telling(lines))
        return DownloadOutcome("" if done else said, *_offered(log, self.target.python))

    def _from_index(self, pin: Pin, index: str) -> str:
        """Download a package from its own index; returns pip's message, or "" on success."""
        kind = "--index-url" if "://" in index else "--find-links"
        options = [f"{kind}={index}", "--retries=0", f"--timeout={PREFERRED_SECONDS}"]
        done, lines, _ = self._run([f"{pin.name}=={pin.version}"], options, with_dependencies=False)
        return "" if done else reason(lines)

    def _run(
        self, requirements: list[str], options: list[str], with_dependencies: bool
    ) -> tuple[bool, list[str], list[str]]:
        """Run pip; returns whether it succeeded, the lines of its messages, and its log."""
        with tempfile.NamedTemporaryFile("r", encoding="utf-8", errors="replace") as log:
            command = [
                *pip_command(), "download", "--quiet", "--no-input", "--disable-pip-version-check",
                *self.target.pip_options(), *([] if with_dependencies else ["--no-deps"]), *options,
                "--log", log.name, "--dest", str(self.folder), *requirements,
            ]  # fmt: skip
            done = subprocess.run(
                command,
                env=pip_environment(),
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                check=False,
                stdin=subprocess.DEVNULL,
            )
            # only the log says, after the time, why an index gave nothing or what is in conflict
            logged = [line.partition(" ")[2].strip() for line in log]
        conflict = [*takewhile(bool, dropwhile(lambda line: line != CONFLICT, logged))]
        if conflict:  # the versions of one package may be many; what they contradict comes last
            return False, [*conflict[: LAST_LINES // 2], *conflict[LAST_LINES // 2 :][-3:]], logged
        unfetched = [line for line in logged if UNFETCHED in line]
        lines = [line.strip() for line in (*unfetched, *done.stderr.splitlines())]
        said = [line.removesuffix(" - skipping") for line in lines if line]
        return done.returncode == 0, said, logged


def _offered(
    log: Iterable[str], python: str
) -> tuple[tuple[Requirement, ...], dict[str, frozenset[Version]], dict[str, frozenset[Version]]]:
    """Return the last three fields of `DownloadOutcome`, read from pip's log."""
    lines = list(log)
    sources = _versions(lines, SOURCES, parse_sdist_filename, python)
    wheels = _versions(lines, WHEELS, lambda name: parse_wheel_filename(name)[:2], python)
    names = {canonicalize_name(name) for line in lines for name in NO_WHEEL.findall(line)}
    found: dict[str, Requirement] = {}
    for needed in (match for line in lines for match in NEEDED.findall(line)):
        try:
            requirement = Requirement(needed)
        except InvalidRequirement:
            continue
        name = canonicalize_name(requirement.name)
        # the newest version of what needs it comes first in the log
        if name in names & sources.keys():
            found.setdefault(name, requirement)
    return tuple(found.values()), sources, wheels


def _versions(
    lines: Iterable[str],
    pattern: re.Pattern[str],
    parse: Callable[[str], tuple[NormalizedName, Version]],
    python: str,
) -> dict[str, frozenset[Version]]:
    """Return the versions, by normalized name, of files in a log that may be for a Python."""
    versions: dict[str, set[Version]] = {}
    for line in lines:
        if not (matched := pattern.search(line)):
            continue
        needed = REQUIRES_PYTHON.search(line)
        try:
            if needed and not SpecifierSet(needed[1]).contains(f"{python}.99"):
                continue
            name, version = parse(unquote(matched[1].rpartition("/")[2]))
        except ValueError:  # a file whose name or range is not valid, which pip does not take
            continue
        versions.setdefault(str(name), set()).add(version)
    return {name: frozenset(numbers) for name, numbers in versions.items()}


def needs(folder: Path, names: Collection[str], python: str) -> set[str]:
    """Which of some packages the wheels of a folder require.

    Args:
        names: normalized names of the packages.
        python: the minor version of the hosts' Python.
    """
    needed = {str(canonicalize_name(one.name)) for one in requirements_in(folder, python)}
    return needed & set(names)


def requirements_in(folder: Path, python: str) -> Iterator[Requirement]:
    """Yield what the wheels of a folder require for a minor version of Python.

    Raises:
        DownloadError: one is not a wheel.
    """
    environment = linux_environment(python)
    for path in sorted(folder.glob("*.whl")):
        for line in _requires(path):
            try:
                requirement = Requirement(line)
                marker = requirement.marker
                if marker is None or marker.evaluate(environment):
                    yield requirement
            except ValueError:
                continue  # uv complains on the host, with the package's name


def _requires(wheel: Path) -> list[str]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            # its own, not that of a vendored package
            name = next(n for n in archive.namelist() if OWN_METADATA.fullmatch(n))
            text = archive.read(name).decode("utf-8", errors="replace")
    except (zipfile.BadZipFile, zlib.error, StopIteration) as error:
        raise DownloadError(
            f"{wheel.name} is not a wheel: {str(error) or 'it has no metadata'}; check its source"
        ) from error
    return HeaderParser().parsestr(text).get_all("Requires-Dist", [])


def unpacked_bytes(wheel: Path) -> int:
    """The size of a wheel's files.

    Raises:
        DownloadError: it is not a zip file.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            return sum(entry.file_size for entry in archive.infolist())
    except zipfile.BadZipFile as error:
        raise DownloadError(f"{wheel.name} is not a wheel: {error}") from error


def pip_version() -> Version:
    """Return the version of the control node's pip.

    Raises:
        DownloadError: there is none.
    """
    command = [*pip_command(), "--version"]
    done = subprocess.run(
        command, env=pip_environment(), capture_output=True, encoding="utf-8", errors="replace",
        check=False,
    )  # fmt: skip
    words = done.stdout.split()
    try:
        return Version(words[1])
    except (IndexError, InvalidVersion):
        raise DownloadError(f"{shlex.join(command)} does not print its version") from None


def pip_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that pip, a compiler and a proxy need, and no others.

    What pip builds is other people's code, and pip replaces ${NAME} in files of requirements.
    Neither should get at tokens for other services.

    >>> pip_environment({"HOME": "/h", "PIP_CERT": "c", "HF_TOKEN": "t", "LC_ALL": "C"})
    {'HOME': '/h', 'PIP_CERT': 'c', 'LC_ALL': 'C'}
    """
    return {name: value for name, value in environ.items() if PIP_NEEDS.fullmatch(name)}


def pip_command() -> list[str]:
    """The control node's pip: that of Ansible's Python, else the system's.

    Raises:
        DownloadError: there is none.
    """
    for python in (sys.executable, shutil.which("python3")):
        if python:
            # -I: nothing is imported from the current folder, which may be another user's
            command = [python, "-I", "-m", "pip"]
            tried = subprocess.run(
                [*command, "--version"], env=pip_environment(), capture_output=True, check=False
            )
            if tried.returncode == 0:
                return command
    raise DownloadError(f"{sys.executable} has no pip; install python3-pip")
