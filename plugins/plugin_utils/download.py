# Apache-2.0 (see LICENSE)
"""Downloads wheels with the control node's pip and pip's configuration."""

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

# PEP 600: a wheel for glibc 2.N runs on 2.N and newer; the oldest wheels, manylinux1, need 2.5
OLDEST_GLIBC_MINOR = 5
LEGACY_TAGS = ("manylinux2014", "manylinux2010", "manylinux1")
OWN_METADATA = re.compile(r"[^/]+\.dist-info/METADATA")
# messages in pip's log: no suitable wheel, sources but no wheel, and the requiring package
NO_WHEEL = re.compile(r"hashes to check 0 links for project '([^']+)'")
SOURCES = re.compile(r"No sources permitted for [^\s:]+: ([^\s#?]+)")
WHEELS = re.compile(r"Found link ([^\s#?]+\.whl)[#?\s,]")
REQUIRES_PYTHON = re.compile(r"\(requires-python:([^)]*)\)")
NEEDED = re.compile(r"(?:depends on|No matching distribution found for|requested) (.+)")
CONFLICT = "The conflict is caused by:"
# environment variables of the session, pip, TLS, proxies and compilers
PIP_NEEDS = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|TZ|TMPDIR|LANG|LANGUAGE|LC_\w+|XDG_\w+|PIP_\w+|NETRC"
    r"|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|(https?|all|no|ftp)_proxy"
    r"|(HTTPS?|ALL|NO|FTP)_PROXY|LD_LIBRARY_PATH|LIBRARY_PATH|CPATH|C(PLUS)?_INCLUDE_PATH"
    r"|PKG_CONFIG(_PATH)?|CC|CXX|FC|AR|LD|CFLAGS|CXXFLAGS|CPPFLAGS|LDFLAGS|MAKE(FLAGS)?|MAX_JOBS"
    r"|CMAKE_\w+|CARGO_HOME|RUSTUP_HOME|RUSTFLAGS|CUDA_HOME|SOURCE_DATE_EPOCH"
)
POLL_SECONDS = 1.0  # time between two reports of a download
PREFERRED_SECONDS = 15  # seconds without a response after which an optional index is skipped


class DownloadError(Exception):
    """Wheels cannot be downloaded; the message contains the reason and advice."""


@dataclass(frozen=True)
class Target:
    """The platform that a wheel must be compatible with.

    Attributes:
        python: version of Python, such as "3.11".
        glibc: version of the C library, such as "2.36".
        machine: architecture, such as "x86_64".
    """

    python: str
    glibc: str
    machine: str

    def __post_init__(self) -> None:
        """Reject invalid values, because they become part of a folder's name and of pip's options.

        Raises:
            ValueError: a value is invalid; the message names it.
        """
        given = f"{self.python} {self.glibc} {self.machine}"
        if not re.fullmatch(r"\d+\.\d+ \d+\.\d+ \w+", given):
            raise ValueError(f"not versions of Python and glibc, and an architecture: {given!a}")

    @property
    def tag(self) -> str:
        """The part of a wheelhouse folder's name that identifies this target."""
        return f"cp{self.python.replace('.', '')}-glibc{self.glibc}-{self.machine}"

    def runs_wheels_of(self, name: str) -> bool:
        """Return True if all wheels for another target also run on this target.

        Args:
            name: name of a folder that ends with the other target's tag.

        >>> Target("3.11", "2.41", "x86_64").runs_wheels_of("native-1b2c-cp311-glibc2.36-x86_64")
        True
        """
        kind = f"-cp{self.python.replace('.', '')}-glibc"
        found = re.search(rf"{re.escape(kind)}(\d+)\.(\d+)-{self.machine}$", name)
        own = tuple(map(int, self.glibc.split(".")))
        return found is not None and tuple(map(int, found.groups())) <= own

    def pip_options(self) -> list[str]:
        """Return the options that make pip choose wheels for this target."""
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
    """Sources of wheels in addition to the sources in pip's configuration.

    Attributes:
        index_url: URL of the package index, or "" for the index in pip's configuration.
        find_links: folders or pages with wheels.
        indexes: index URL by package name; for these packages, this index is tried first.
    """

    index_url: str = ""
    find_links: tuple[str, ...] = ()
    indexes: dict[str, str] = field(default_factory=dict)

    def pip_options(self) -> list[str]:
        """Return pip's options for packages without an entry in `indexes`."""
        options = [f"--index-url={self.index_url}"] if self.index_url else []
        return options + [f"--find-links={place}" for place in self.find_links]


@dataclass(frozen=True)
class DownloadOutcome:
    """The result of downloading the requirements in a file.

    Attributes:
        problem: reason why there are no compatible wheels, or "".
        lacking: requirements for which there are sources but no wheel. If `problem` is empty, pip
            has instead chosen older versions of the packages with these requirements.
        sources: versions for which there are sources, by normalized package name.
        wheels: versions for which there is a suitable wheel, by normalized package name.
    """

    problem: str
    lacking: tuple[Requirement, ...]
    sources: dict[str, frozenset[Version]]
    wheels: dict[str, frozenset[Version]]


@dataclass(frozen=True)
class Pip:
    """The control node's pip, which downloads wheels for a target into a folder.

    Attributes:
        on_bytes: function that is called with the bytes downloaded so far while pip runs.
    """

    target: Target
    sources: Sources
    folder: Path
    on_bytes: Callable[[int], None] = lambda _: None

    def download(self, pins: Iterable[Pin], with_dependencies: bool = False) -> dict[str, str]:
        """Download packages, each from its own index if it has one.

        Args:
            pins: packages with name and version.
            with_dependencies: True to also download dependencies, in versions that pip chooses.

        Returns:
            pip's message by package name, for packages that were not in their own index.

        Raises:
            DownloadError: no source has a package.
        """
        refused = {}
        remaining = []
        pins = list(pins)
        for pin in pins:
            index = self.sources.indexes.get(pin.name, "")
            words = self._from_index(pin, index) if index else ""
            if words:
                refused[pin.name] = f"{redacted(index)}: {words}"
            # pip must see all packages at once to agree on versions of dependencies
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
        """Return the reason why the configured sources do not have a package, or "".

        A source that responds slowly counts as failed, although a real download would wait longer.
        """
        options = [*self.sources.pip_options(), "--retries=1", f"--timeout={PREFERRED_SECONDS}"]
        done, lines, _ = self._run([f"{pin.name}=={pin.version}"], options, with_dependencies=False)
        if done or any("timed out" in line and "proxy" not in line for line in lines):
            return ""
        return complaint(lines, self.target, {}, {pin.name}, os.environ)

    def download_file(self, requirements: Path, constraints: Path) -> DownloadOutcome:
        """Download the requirements in a file and their dependencies, within constraints.

        Requirements and constraints are files, because they may contain credentials.
        """
        words = [f"--requirement={requirements}", f"--constraint={constraints}"]
        done, lines, log = self._run(words, self.sources.pip_options(), with_dependencies=True)
        said = known_cause("\n".join(lines), os.environ) or "\n".join(telling(lines))
        return DownloadOutcome("" if done else said, *_offered(log, self.target.python))

    def _from_index(self, pin: Pin, index: str) -> str:
        """Download a package from its own index; return pip's message, or "" on success."""
        kind = "--index-url" if "://" in index else "--find-links"
        options = [f"{kind}={index}", "--retries=0", f"--timeout={PREFERRED_SECONDS}"]
        done, lines, _ = self._run([f"{pin.name}=={pin.version}"], options, with_dependencies=False)
        return "" if done else reason(lines)

    def _run(
        self, requirements: list[str], options: list[str], with_dependencies: bool
    ) -> tuple[bool, list[str], list[str]]:
        """Run pip; return (True on success, lines of messages, lines of the log)."""
        # pip downloads into TMPDIR, and copies the files at the end
        with (
            tempfile.NamedTemporaryFile("r", encoding="utf-8", errors="replace") as log,
            tempfile.TemporaryDirectory(prefix="ftcluster-pip-") as scratch,
        ):
            command = [
                *pip_command(), "download", "--quiet", "--no-input", "--disable-pip-version-check",
                *self.target.pip_options(), *([] if with_dependencies else ["--no-deps"]), *options,
                "--log", log.name, "--dest", str(self.folder), *requirements,
            ]  # fmt: skip
            code, errors = self._watched(command, Path(scratch))
            # only the log, with timestamps, explains an empty index or a conflict
            logged = [line.partition(" ")[2].strip() for line in log]
        conflict = [*takewhile(bool, dropwhile(lambda line: line != CONFLICT, logged))]
        if conflict:  # a package may have many versions; the conflicting requirement comes last
            return False, [*conflict[: LAST_LINES // 2], *conflict[LAST_LINES // 2 :][-3:]], logged
        unfetched = [line for line in logged if UNFETCHED in line]
        lines = [line.strip() for line in (*unfetched, *errors.splitlines())]
        said = [line.removesuffix(" - skipping") for line in lines if line]
        return code == 0, said, logged

    def _watched(self, command: list[str], scratch: Path) -> tuple[int, str]:
        """Run pip and report the bytes of its files; return (exit code, stderr)."""
        before = most = size_of(self.folder)
        with subprocess.Popen(
            command,
            env={**pip_environment(), "TMPDIR": str(scratch)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
        ) as process:
            try:
                while True:
                    try:
                        _, errors = process.communicate(timeout=POLL_SECONDS)
                    except subprocess.TimeoutExpired:
                        # count only files in subfolders, because files at the top are copies for
                        # pip's own cache
                        now = sum(size_of(path) for path in scratch.iterdir() if path.is_dir())
                        most = max(most, before + now)
                        self.on_bytes(most)
                    else:
                        return process.returncode, errors
            finally:
                process.kill()


def size_of(folder: Path) -> int:
    """Return the bytes of all files below a folder; files may disappear meanwhile."""
    total = 0
    for where, _folders, names in os.walk(folder):
        for name in names:
            try:
                total += Path(where, name).lstat().st_size
            except OSError:
                continue
    return total


def _offered(
    log: Iterable[str], python: str
) -> tuple[tuple[Requirement, ...], dict[str, frozenset[Version]], dict[str, frozenset[Version]]]:
    """Read `lacking`, `sources` and `wheels` of a `DownloadOutcome` from pip's log."""
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
        # in the log, the newest version of the requiring package comes first
        if name in names & sources.keys():
            found.setdefault(name, requirement)
    return tuple(found.values()), sources, wheels


def _versions(
    lines: Iterable[str],
    pattern: re.Pattern[str],
    parse: Callable[[str], tuple[NormalizedName, Version]],
    python: str,
) -> dict[str, frozenset[Version]]:
    """Return the versions of files in a log that fit a Python version, by normalized name."""
    versions: dict[str, set[Version]] = {}
    for line in lines:
        if not (matched := pattern.search(line)):
            continue
        needed = REQUIRES_PYTHON.search(line)
        try:
            if needed and not SpecifierSet(needed[1]).contains(f"{python}.99"):
                continue
            name, version = parse(unquote(matched[1].rpartition("/")[2]))
        except ValueError:  # pip ignores a file with an invalid name or range
            continue
        versions.setdefault(str(name), set()).add(version)
    return {name: frozenset(numbers) for name, numbers in versions.items()}


def needs(folder: Path, names: Collection[str], python: str) -> set[str]:
    """Return the packages in `names` that the wheels in a folder require.

    Args:
        names: normalized package names.
        python: minor version of the hosts' Python.
    """
    needed = {str(canonicalize_name(one.name)) for one in requirements_in(folder, python)}
    return needed & set(names)


def requirements_in(folder: Path, python: str) -> Iterator[Requirement]:
    """Yield the requirements of the wheels in a folder for a minor version of Python.

    Raises:
        DownloadError: a file is not a wheel.
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
                continue  # uv reports the error on the host, with the package's name


def _requires(wheel: Path) -> list[str]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            # the package's own metadata, not that of a vendored package
            name = next(n for n in archive.namelist() if OWN_METADATA.fullmatch(n))
            text = archive.read(name).decode("utf-8", errors="replace")
    except (zipfile.BadZipFile, zlib.error, StopIteration) as error:
        raise DownloadError(
            f"{wheel.name} is not a wheel: {str(error) or 'it contains no metadata'}; check its "
            "source"
        ) from error
    return HeaderParser().parsestr(text).get_all("Requires-Dist", [])


def unpacked_bytes(wheel: Path) -> int:
    """Return the unpacked size of a wheel in bytes.

    Raises:
        DownloadError: the wheel is not a zip file.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            return sum(entry.file_size for entry in archive.infolist())
    except zipfile.BadZipFile as error:
        raise DownloadError(f"{wheel.name} is not a wheel: {error}") from error


def pip_version() -> Version:
    """Return the version of the control node's pip.

    Raises:
        DownloadError: there is no pip.
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
    """Return only the environment variables that pip, compilers and proxies need.

    When pip builds a package, the package's code is executed. In addition, pip expands ${NAME} in
    requirements files. Neither may read tokens for other services.

    >>> pip_environment({"HOME": "/h", "PIP_CERT": "c", "HF_TOKEN": "t", "LC_ALL": "C"})
    {'HOME': '/h', 'PIP_CERT': 'c', 'LC_ALL': 'C'}
    """
    return {name: value for name, value in environ.items() if PIP_NEEDS.fullmatch(name)}


def pip_command() -> list[str]:
    """Return the command for pip: the pip of Ansible's Python, or else the system's pip.

    Raises:
        DownloadError: there is no pip.
    """
    for python in (sys.executable, shutil.which("python3")):
        if python:
            # -I: Python imports nothing from the current folder, which may belong to another user
            command = [python, "-I", "-m", "pip"]
            tried = subprocess.run(
                [*command, "--version"], env=pip_environment(), capture_output=True, check=False
            )
            if tried.returncode == 0:
                return command
    raise DownloadError(f"{sys.executable} has no pip; install python3-pip")
