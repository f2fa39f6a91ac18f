# Apache-2.0 (see LICENSE)
"""What verify is told of the hosts, by their facts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

DOCUMENTATION = r"""
name: verify_request
short_description: What verify is told of the hosts
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
description: Picks what C(ftcluster_train.health.verify) needs of the hosts' facts.
options:
  _input:
    description:
      - For each host, by its inventory name, C(facts), which are
        RV(ftcluster.cluster.host_facts#module:facts) and what the role
        P(ftcluster.cluster.preflight#role) adds; empty where they are not known.
      - And C(ansible_host), the inventory's address.
    type: dict
    required: true
  addresses:
    description: Addresses of hosts without facts, by their inventory names.
    type: dict
    default: {}
"""

EXAMPLES = r"""
request: "{{ verify__known | ftcluster.cluster.verify_request }}"
"""

RETURN = r"""
_value:
  description:
    - The parts of the request that differ from host to host.
    - C(calls) has where the control node connects to each host.
  type: dict
  sample: {hosts: [{name: node0, address: 10.0.0.10}], cores: {node0: 8}, guarded: [node0]}
"""

OUR_PORTS = "29500-29999"  # where mpirun and the ranks meet
NETWORK = (
    "network_interface", "network_provider", "rdma", "rdma_libraries", "locks_memory", "rank_user",
)  # fmt: skip


def verify_request(
    hosts: Mapping[str, Mapping[str, Any]], addresses: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The parts of the request."""
    facts_of = {name: host["facts"] for name, host in hosts.items()}
    known = {name: facts for name, facts in facts_of.items() if facts}

    def address(name: str) -> str:
        given = (addresses or {}).get(name) or hosts[name]["ansible_host"]
        return str(facts_of[name].get("network_address", given))

    return {
        "hosts": [{"name": name, "address": address(name)} for name in hosts],
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
        "calls": [
            {
                "name": name,
                "address": hosts[name]["ansible_host"],
                "ssh_port": facts["ssh_port"],
                "local_ports": facts["local_ports"],
            }
            for name, facts in known.items()
        ],
    }


class FilterModule:
    def filters(self) -> dict[str, Any]:
        return {"verify_request": verify_request}
