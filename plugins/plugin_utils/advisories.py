# Apache-2.0 (see LICENSE)
"""Finds the known vulnerabilities of a stack's versions. Pure functions only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from packaging.specifiers import SpecifierSet


def advisories_of(
    packages: Mapping[str, str], advisories: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the advisories that affect these packages, as {id, package, version, allows, source}.

    Args:
        packages: exact versions by package name.
        advisories: entries of advisories.yml, in its order.

    >>> known = {"CVE-1": {"package": "torch", "affected": "<2.10", "allows": "x", "source": "y"}}
    >>> [one["id"] for one in advisories_of({"torch": "2.9.1"}, known)]
    ['CVE-1']
    >>> advisories_of({"torch": "2.10.0"}, known)
    []
    """
    return [
        {
            "id": name,
            "package": one["package"],
            "version": packages[one["package"]],
            "allows": one["allows"],
            "source": one["source"],
        }
        for name, one in advisories.items()
        if one["package"] in packages
        and SpecifierSet(one["affected"]).contains(packages[one["package"]], prereleases=True)
    ]


def advisory_notice(stack: str, found: Sequence[Mapping[str, str]], looked_at: object) -> str:
    """Return a line about the advisories of a stack, or "" if there are none."""
    if not found:
        return ""
    by_package: dict[str, list[str]] = {}
    for one in found:
        by_package.setdefault(f"{one['package']} {one['version']}", []).append(one["id"])
    listed = "; ".join(f"{package}: {', '.join(ids)}" for package, ids in by_package.items())
    return (
        f"stack {stack} has known vulnerabilities ({listed}; as of {looked_at}); for details: "
        f"ftcluster stacks {stack}"
    )
