# Apache-2.0 (see LICENSE)
"""Reads locks: complete lists of exact package versions in pip's format."""

from __future__ import annotations

import re
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
SIZES = re.compile(r"^# download (\d+) bytes, unpacked (\d+) bytes", re.MULTILINE)


class LockError(Exception):
    """A line of a lock cannot be read; the message names the line."""


@dataclass(frozen=True)
class Pin:
    """One package of a lock.

    Attributes:
        name: normalized name (PEP 503).
        version: exact version.
        hashes: SHA-256 of the accepted files. If empty, any file is accepted, but only if the user
            allows unverified files.
    """

    name: str
    version: str
    hashes: frozenset[str]


def read_lock(text: str, python: str) -> dict[str, Pin]:
    """Return the packages of a lock for a Python version, by normalized name.

    Args:
        text: lines of the form `name==version [; marker] [--hash=sha256:...]`. A backslash at the
            end of a line continues the line.
        python: minor version, such as "3.11".

    Raises:
        LockError: a line has another form.
    """
    pins: dict[str, Pin] = {}
    for line in text.replace("\\\n", " ").splitlines():
        words = HASH.sub("", line.split(" #")[0]).strip()
        if not words or words.startswith("#"):
            continue
        try:
            requirement = Requirement(words)
            applies = not requirement.marker or requirement.marker.evaluate(
                linux_environment(python)
            )
            [specifier] = requirement.specifier
            Version(specifier.version)  # rejects 2.*
        except ValueError as error:  # another form, or a meaningless marker
            raise LockError(f"'{words}': {error}") from error
        if specifier.operator != "==" or requirement.extras:
            raise LockError(f"'{words}' is not of the form name==version")
        if applies:
            name = canonicalize_name(requirement.name)
            pins[name] = Pin(name, specifier.version, frozenset(HASH.findall(line)))
    return pins


def linux_environment(python: str) -> dict[str, str]:
    """Return the hosts' environment, in which markers are evaluated (PEP 508)."""
    return {
        "python_version": python,
        "python_full_version": f"{python}.99",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "os_name": "posix",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "extra": "",
    }


def sizes(text: str) -> tuple[int, int]:
    """Return the bytes to download and the unpacked bytes that a lock's header names, or (0, 0)."""
    match = SIZES.search(text)
    return (int(match[1]), int(match[2])) if match else (0, 0)
