# Apache-2.0 (see LICENSE)
"""Which known vulnerabilities the versions of a stack have. Pure functions only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from packaging.specifiers import SpecifierSet


def advisories_of(
    packages: Mapping[str, str], advisories: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The advisories that affect some of these packages, as {id, package, version, allows, source}.

    Args:
        packages: exact versions by name.
        advisories: as advisories.yml has them, in its order.

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
    """One line about the advisories of a stack; "" for none."""
    if not found:
        return ""
    by_package: dict[str, list[str]] = {}
    for one in found:
        by_package.setdefault(f"{one['package']} {one['version']}", []).append(one["id"])
    listed = "; ".join(f"{package}: {', '.join(ids)}" for package, ids in by_package.items())
    return (
        f"stack {stack} has known vulnerabilities ({listed}; looked at on {looked_at}); what they "
        f"allow: ftcluster stacks {stack}"
    )
