# Apache-2.0 (see LICENSE)
"""Checks, before hosts are changed, that the control node can download the missing wheels."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.ftcluster.cluster.plugins.plugin_utils.download import (
    DownloadError,
    Pip,
    Sources,
    Target,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.lock import Pin, read_lock
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.wheelhouse import (
    MANIFEST,
    Wanted,
    read_wheelhouse,
)


def kinds_of(
    hosts: Mapping[str, Mapping[str, Any]], pythons: Mapping[str, str]
) -> dict[Target, str]:
    """Return the targets of the wheels that hosts need, each with the first host that needs it.

    Args:
        hosts: facts by host; any fact may be missing.
        pythons: path of the Python to use, by host; "" for none.
    """
    found: dict[Target, str] = {}
    for host, facts in hosts.items():
        versions = {one["path"]: one["version"] for one in facts.get("pythons", ())}
        python = ".".join(versions.get(pythons[host], "").split(".")[:2])
        kind, _, glibc = facts.get("libc", "").partition(" ")
        with contextlib.suppress(ValueError):  # a host without Python, or without glibc
            target = Target(python, glibc if kind == "glibc" else "", facts.get("machine", ""))
            found.setdefault(target, host)
    return found


def refusal(wanted: Wanted, target: Target, sources: Sources, cache: Path) -> str:
    """Return the reason why the wheels cannot be downloaded, or "".

    Download one wheel as a test: a wheel that is not in the cache and has no separate index.

    Raises:
        LockError: the list has the wrong form.
    """
    if read_wheelhouse(wanted.folder(cache, target)):
        return ""
    pins = read_lock(wanted.lock, target.python)
    known = set() if wanted.resolve else _known(cache, pins, target)
    there = known | sources.indexes.keys()
    lacking = [pin for name, pin in sorted(pins.items()) if name not in there]
    if not lacking:
        return ""
    with tempfile.TemporaryDirectory(prefix="ftcluster-") as folder:
        try:
            return Pip(target, sources, Path(folder)).try_one(lacking[0])
        except DownloadError as error:  # there is no pip on the control node
            return str(error)


def _known(cache: Path, pins: Mapping[str, Pin], target: Target) -> set[str]:
    """Return the packages that `link_known` would link from other wheelhouses in the cache."""
    there = {
        wheel.sha256
        for manifest in cache.glob(f"*-cp*/{MANIFEST}")
        if target.runs_wheels_of(manifest.parent.name)
        and (house := read_wheelhouse(manifest.parent))
        and not house.notices
        for wheel in house.wheels.values()
    }
    return {name for name, pin in pins.items() if pin.hashes & there}
