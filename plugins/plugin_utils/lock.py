# Apache-2.0 (see LICENSE)
"""Locks: complete lists of exact versions, in the form that pip reads."""

from __future__ import annotations

import re
from dataclasses import dataclass

from packaging.markers import Marker

NAME = re.compile(r"[A-Za-z0-9._-]+")
VERSION = re.compile(r"[A-Za-z0-9.!+_-]+")
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
SIZES = re.compile(r"^# download (\d+) bytes, unpacked (\d+) bytes", re.MULTILINE)


class LockError(Exception):
    """A list of versions is not of the right form; says where."""


@dataclass(frozen=True)
class Pin:
    """One package of a lock.

    Attributes:
        name: as indexes compare names (PEP 503).
        version: the exact one.
        hashes: the SHA-256 of the files that are accepted; without any, a file is taken on an
            explicit word only.
    """

    name: str
    version: str
    hashes: frozenset[str]


def normal(name):
    """A package's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_lock(text, python):
    """The packages of a lock that one Python gets, as {name: Pin}.

    Args:
        text: lines of the form `name==version [; marker] [--hash=sha256:...]`; a backslash at its
            end continues a line.
        python: the minor version, e.g. "3.11".

    Raises:
        LockError: a line is something else.
    """
    pins = {}
    for line in text.replace("\\\n", " ").splitlines():
        requirement = HASH.sub("", line.split(" #")[0]).strip()
        if not requirement or requirement.startswith("#"):
            continue
        words, _, marker = requirement.partition(";")
        name, equals, version = words.strip().partition("==")
        if not equals or not NAME.fullmatch(name) or not VERSION.fullmatch(version):
            raise LockError(f"'{requirement}' is not of the form name==version")
        if _applies(marker.strip(), python, requirement):
            pins[normal(name)] = Pin(normal(name), version, frozenset(HASH.findall(line)))
    return pins


def _applies(marker, python, requirement):
    try:
        environment = linux_environment(python)
        return not marker or Marker(marker).evaluate(environment)
    except ValueError as error:  # its form, or a comparison that means nothing
        raise LockError(f"'{requirement}': {error}") from error


def linux_environment(python):
    """What markers are evaluated in (PEP 508): the hosts' environment, not the control node's."""
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


def sizes(text):
    """Bytes to download and bytes unpacked that a lock's head tells; zeros where it does not."""
    found = SIZES.search(text)
    return (int(found[1]), int(found[2])) if found else (0, 0)
