# Apache-2.0 (see LICENSE)
"""The wheels of an environment, downloaded once on the control node for all its hosts."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

# PEP 600: a wheel for glibc 2.N runs on 2.N and newer; 2.5 is manylinux1's, the oldest
OLDEST_GLIBC_MINOR = 5
LEGACY_TAGS = ("manylinux2014", "manylinux2010", "manylinux1")
LAST_LINES = 8
NAME = re.compile(r"[A-Za-z0-9._-]+")
VERSION = re.compile(r"[A-Za-z0-9.!+_-]+")


class WheelhouseError(Exception):
    """The wheels cannot be had; says what to do."""


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
            "--no-deps",
            "--implementation=cp",
            f"--python-version={self.python}",
        ]
        options += [f"--platform={tag}_{self.machine}" for tag in (*tags, *LEGACY_TAGS, "linux")]
        return options


@dataclass(frozen=True)
class Wheelhouse:
    """Downloaded wheels.

    Attributes:
        folder: where they are.
        sha256: the hash of each file, by name.
    """

    folder: Path
    sha256: dict[str, str]

    @property
    def files(self):
        """The paths of all wheels."""
        return [self.folder / name for name in sorted(self.sha256)]


def requirements(text):
    """The lines `name==version` of a list of versions, as {normal name: version}.

    Raises:
        WheelhouseError: a line is something else.
    """
    found = {}
    for line in text.splitlines():
        words = line.split("#")[0].strip().rstrip("\\").split()
        if not words or words[0].startswith("--hash"):
            continue
        name, equals, version = words[0].partition("==")
        others = [word for word in words[1:] if not word.startswith("--hash=")]
        if not equals or others or not NAME.fullmatch(name) or not VERSION.fullmatch(version):
            raise WheelhouseError(f"'{line.strip()}' is not of the form name==version")
        found[normal(name)] = version
    return found


def normal(name):
    """A package's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def allowed_hashes(text):
    """The sha256 of every `--hash` in a list of versions; empty where it has none."""
    return set(re.findall(r"--hash=sha256:([0-9a-f]{64})", text))


def sha256_of(path):
    """The SHA-256 of a file, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def get_wheels(requirements_file, target, cache):
    """Download what a list of versions names, unless that has been done; one process at a time.

    Args:
        requirements_file: the list, one `name==version` a line.
        target: the hosts' Python and C library.
        cache: the folder for all wheelhouses.

    Raises:
        WheelhouseError: pip cannot download it, or a hash is not the expected one.
    """
    try:
        return _get_wheels(requirements_file, target, cache)
    except OSError as error:
        raise WheelhouseError(
            f"{error.filename or cache}: {error.strerror}; set virtualenv_cache to a folder on the "
            "control node that can be written and has space"
        ) from error


def _get_wheels(requirements_file, target, cache):
    text = requirements_file.read_text(encoding="utf-8")
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    folder = cache / f"{requirements_file.stem}-{digest}-{target.tag}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        house = read_wheelhouse(folder)
        if house is None:
            house = download(requirements_file, text, target, folder)
    return house


def read_wheelhouse(folder):
    """A wheelhouse that is complete, or None."""
    try:
        manifest = json.loads((folder / "wheels.json").read_text(encoding="utf-8"))
        if any((folder / name).stat().st_size != e["size"] for name, e in manifest.items()):
            return None
        found = {name: e["sha256"] for name, e in manifest.items()}
        return Wheelhouse(folder, found) if found else None
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None  # not there, or damaged


def download(requirements_file, text, target, folder):
    """Fill a wheelhouse; it gets its name when it is complete."""
    shutil.rmtree(folder, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        command = [
            *pip(), "download", "--quiet", "--no-input", "--disable-pip-version-check",
            *target.pip_options(), "--requirement", str(requirements_file), "--dest", str(scratch),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise WheelhouseError(complaint(done.stderr, target))
        manifest = check(scratch, text)
        with (scratch / "wheels.json").open("w", encoding="utf-8") as file:
            json.dump(manifest, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return Wheelhouse(folder, {name: entry["sha256"] for name, entry in manifest.items()})


def check(folder, text):
    """Size and hash of every file that was downloaded, compared with the list of versions."""
    wanted, hashes = requirements(text), allowed_hashes(text)
    manifest = {}
    for path in sorted(folder.iterdir()):
        name, _, rest = path.name.partition("-")
        version = rest.partition("-")[0]
        locked = wanted.pop(normal(name), None)
        # a local version is another build of the same source: 2.13.0+cpu is 2.13.0 for CPUs
        if locked is None or version.split("+")[0] != locked.split("+")[0]:
            raise WheelhouseError(f"pip downloaded {path.name}, which the list does not name")
        digest = sha256_of(path)
        if hashes and digest not in hashes:
            raise WheelhouseError(
                f"{path.name} has the sha256 {digest}, which the list of versions does not allow; "
                "see where pip's configuration takes it from"
            )
        manifest[path.name] = {"size": path.stat().st_size, "sha256": digest}
    if wanted:
        raise WheelhouseError(f"pip did not download {', '.join(sorted(wanted))}")
    return manifest


def complaint(stderr, target):
    """What pip says, without its warnings, and what can be done."""
    lines = [line for line in stderr.splitlines() if line.strip() and "WARNING" not in line]
    return (
        f"the control node cannot download the wheels for Python {target.python} and glibc "
        f"{target.glibc}: " + "\n".join(lines[-LAST_LINES:]).strip() + "\n"
        "see that pip on the control node reaches a package index (pip config list)"
    )


def pip():
    """A pip of the control node: that of Ansible's own Python, else the system's.

    Raises:
        WheelhouseError: there is none.
    """
    for python in (sys.executable, shutil.which("python3")):
        if python:
            command = [python, "-m", "pip"]
            tried = subprocess.run([*command, "--version"], capture_output=True, check=False)
            if tried.returncode == 0:
                return command
    raise WheelhouseError(f"there is no pip beside {sys.executable}; install python3-pip")
