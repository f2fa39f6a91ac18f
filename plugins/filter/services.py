# Apache-2.0 (see LICENSE)
"""Services of a host that the firewall would close."""

from __future__ import annotations

from ansible_collections.ftcluster.cluster.plugins.module_utils.number_list import number_list

DOCUMENTATION = r"""
name: services
short_description: Services of a host that the firewall would close
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
description:
  - Compares the ports at which others' programs listen on a host with those that are to be closed.
  - A port of the kernel's usual ephemeral range, or of ftcluster's own, is worth a notice. One that
    is elsewhere was chosen by somebody, so closing it is a problem.
options:
  _input:
    description: RV(ftcluster.cluster.host_facts#module:facts).
    type: dict
    required: true
  closed:
    description: Ports and ranges that are to be closed to everyone but the cluster.
    type: list
    elements: str
    required: true
  known:
    description: Ports and ranges of which it was said whether they are to be closed.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
found: "{{ preflight_facts | ftcluster.cluster.services(['32768-60999'], ['40000']) }}"
"""

RETURN = r"""
_value:
  description: Two lists of sentences, C(problems) and C(notices).
  type: dict
"""

USUAL = {*range(29500, 30000), *range(32768, 61000)}


def services(facts, closed, known):
    """What would be closed, as sentences that end with what to do."""
    guarded = number_list(",".join(closed)) - number_list(",".join(map(str, known)))
    hit = [service for service in facts.get("services", []) if service["port"] in guarded]
    usual = [service for service in hit if service["port"] in USUAL]
    chosen = [service for service in hit if service["port"] not in USUAL]
    leave = "ftcluster_firewall_open_ports=[{ports}] for this host leaves open what it names"
    close = "ftcluster_firewall_ports=[{ports}] closes it"
    return {
        "problems": sentence(chosen, "would close", f"say which is meant: {leave}, {close}"),
        "notices": sentence(usual, "closes", leave),
    }


def sentence(found, closes, hint):
    """One sentence on all of them, or none."""
    if not found:
        return []
    ports = ", ".join(str(service["port"]) for service in found)
    named = ", ".join(f"{service['port']} (of {service['user']})" for service in found)
    return [
        f"the firewall {closes} these ports, at which services listen, to all but the cluster, "
        f"because they are among the kernel's local ports: {named}; {hint.format(ports=ports)}"
    ]


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        """The filters of this file by name."""
        return {"services": services}
