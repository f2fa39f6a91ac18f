# Apache-2.0 (see LICENSE)
"""Checks if another cluster needs a host's account or firewall rules."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

DOCUMENTATION = r"""
name: other_rules
short_description: Finds conflicts with another cluster's account or firewall rules on a host
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
description:
  - A host has a single home of the training account, a single set of limits and a single table of
    firewall rules. Clusters in several folders can share them if the clusters have the same hosts
    and the same account. Otherwise the second setup would take them away from the first cluster, or
    block its traffic.
  - If there is no training account, the login user trains, and the rules of another cluster block
    the login user's ports.
options:
  _input:
    description: RV(ftcluster.cluster.host_facts#module:facts), with the account C(rank_user).
    type: dict
    required: true
  addresses:
    description: The addresses of the cluster that is set up.
    type: list
    elements: str
    required: true
  closes:
    description: True if this setup writes firewall rules.
    type: bool
    default: true
"""

EXAMPLES = r"""
problems: "{{ preflight_facts | ftcluster.cluster.other_rules(['10.0.0.11', '10.0.0.12']) }}"
"""

RETURN = r"""
_value:
  description: Findings, each with C(what) and C(hint); empty without a conflict.
  type: list
  elements: dict
  sample: [{what: the rules are those of another cluster, hint: tear it down}]
"""


def other_rules(
    facts: Mapping[str, Any], addresses: Collection[str], closes: bool = True
) -> list[dict[str, str]]:
    """Return a problem if another cluster needs the host's account or firewall rules."""
    others = facts["other_clusters"]
    folders = ", ".join(other["prefix"] for other in others)
    if not facts["rank_user"]:
        if not others or not facts["firewall_hosts"] or facts["is_root"]:
            return []
        account = ", ".join(sorted({other["user"] for other in others}))
        return [
            {
                "what": f"its firewall reserves the training ports for {account}, the account of "
                f"the cluster in {folders}, so {facts['user']} cannot train here",
                "hint": "train on that cluster, or tear it down",
            }
        ]
    rules = facts["firewall_hosts"] if closes and others else []
    shut = [address for address in rules if address not in addresses]
    accounts = sorted({other["user"] for other in others} - {facts["rank_user"]})
    if not shut and not accounts:
        return []
    has = " and ".join([
        *([f"its home, limits and firewall belong to the account {', '.join(accounts)}"]
          if accounts else []),
        *([f"its firewall admits {', '.join(shut)}"] if shut else []),
    ])  # fmt: skip
    keep = "" if accounts else "; to leave the rules as they are: -e ftcluster_firewall=false"
    return [
        {
            "what": f"{has} for the cluster in {folders}, and this setup would replace them",
            "hint": "tear that cluster down, or set up both clusters with the same hosts and "
            "account; if that cluster no longer exists, remove its file in "
            f"/etc/ftcluster/clusters{keep}",
        }
    ]


class FilterModule:
    def filters(self) -> dict[str, Any]:
        return {"other_rules": other_rules}
