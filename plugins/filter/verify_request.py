# Apache-2.0 (see LICENSE)
"""Builds the request for the program `verify` from the hosts' facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DOCUMENTATION = r"""
name: verify_request
short_description: Builds the request to verify from the hosts' facts
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
description: Selects the facts that C(ftcluster_train.health.verify) needs.
options:
  _input:
    description: >-
      By inventory name, RV(ftcluster.cluster.host_facts#module:facts) with the additions of the
      role P(ftcluster.cluster.preflight#role); empty if unknown.
    type: dict
    required: true
  ansible_hosts:
    description: The inventory address of each host, C(ansible_host); empty if there is none.
    type: dict
    required: true
  addresses:
    description: Addresses of hosts without facts, by inventory name.
    type: dict
    default: {}
"""

EXAMPLES = r"""
request: "{{ (facts | ftcluster.cluster.verify_request({'node0': '10.0.0.10'})).request }}"
"""

RETURN = r"""
_value:
  description:
    - The host-specific parts of the C(request), and the addresses for the control node's
      C(calls).
  type: dict
  sample:
    request: {hosts: [{name: node0, address: 10.0.0.10}], cores: {node0: 8}, guarded: [node0]}
    calls: [{name: node0, address: 10.0.0.10, ssh_port: 22, local_ports: [32768-60999]}]
"""

OUR_PORTS = "29500-29999"  # ports on which mpirun and the ranks connect
NETWORK = (
    "network_interface", "network_provider", "rdma", "rdma_libraries", "locks_memory", "rank_user",
)  # fmt: skip


def verify_request(
    facts_of: Mapping[str, Mapping[str, Any]],
    ansible_hosts: Mapping[str, str],
    addresses: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the parts of the request, and the hosts to which the control node connects."""
    known = {name: facts for name, facts in facts_of.items() if facts}

    def address(name: str) -> str:
        given = (addresses or {}).get(name) or ansible_hosts[name] or name
        return str(facts_of[name].get("network_address", given))

    request = {
        "hosts": [{"name": name, "address": address(name)} for name in facts_of],
        "cores": {name: facts.get("cores", 0) for name, facts in facts_of.items()},
        "mbits": {
            name: {
                nic["name"]: nic["speed_mbits"]
                for nic in facts.get("nics", ())
                if nic["speed_mbits"]
            }
            for name, facts in facts_of.items()
        },
        "networks": {name: {key: facts[key] for key in NETWORK} for name, facts in known.items()},
        "firewalls": {
            name: {"program": facts["host_firewall"], "ports": [OUR_PORTS, *facts["local_ports"]]}
            for name, facts in known.items()
            if facts["host_firewall"]
        },
        "guarded": [name for name, facts in known.items() if facts["firewall_rules"]],
    }
    calls = [
        {
            "name": name,
            "address": ansible_hosts[name] or name,
            "ssh_port": facts["ssh_port"],
            "local_ports": facts["local_ports"],
        }
        for name, facts in known.items()
    ]
    return {"request": request, "calls": calls}


class FilterModule:
    def filters(self) -> dict[str, Any]:
        return {"verify_request": verify_request}
