# Apache-2.0 (see LICENSE)
"""Whether the firewall's rules of a host are those of another cluster."""

from __future__ import annotations

DOCUMENTATION = r"""
name: other_rules
short_description: Whether the firewall's rules of a host are those of another cluster
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
description:
  - A host has one table of rules. Clusters in several folders can share it if they have the same
    hosts and the same account; else the second one's setup would shut the first one's out.
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
"""

EXAMPLES = r"""
problems: "{{ preflight_facts | ftcluster.cluster.other_rules(['10.0.0.11', '10.0.0.12']) }}"
"""

RETURN = r"""
_value:
  description: Findings, each with C(what) and C(hint); none where nobody is shut out.
  type: list
  elements: dict
  sample: [{what: the rules are those of another cluster, hint: tear it down}]
"""


def other_rules(facts, addresses):
    """The problem of a host whose rules another cluster needs, if there is one."""
    rules = facts["firewall_hosts"]
    others = facts["other_clusters"]
    if not rules or not others:
        return []
    shut = [address for address in rules if address not in addresses]
    accounts = sorted({other["user"] for other in others} - {facts["rank_user"]})
    if not shut and not accounts:
        return []
    folders = ", ".join(other["prefix"] for other in others)
    needs = " and ".join([
        *([f"lets in {', '.join(shut)}"] if shut else []),
        *([f"is for the account {', '.join(accounts)}"] if accounts else []),
    ])  # fmt: skip
    return [
        {
            "what": f"its firewall, of which a host has one, {needs} for the cluster in {folders}, "
            "which this setup would shut out",
            "hint": "tear that cluster down, or set both up with the same hosts and account; one "
            "that is gone is forgotten by removing its file in /etc/ftcluster/clusters; to leave "
            "the rules as they are: -e ftcluster_firewall=false",
        }
    ]


class FilterModule:
    def filters(self):
        return {"other_rules": other_rules}
