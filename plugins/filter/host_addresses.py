# Apache-2.0 (see LICENSE)
"""Collects the addresses of a cluster's hosts for its firewall."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.ftcluster.cluster.plugins.module_utils.network import plain

DOCUMENTATION = r"""
name: host_addresses
short_description: Collects the addresses of a cluster's hosts
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
description:
  - For a host with facts, returns the address at which other hosts reach it. For any other host,
    returns the first one that is set of C(ftcluster_address), the saved address, C(ansible_host),
    and the inventory name.
options:
  _input:
    description: C(hostvars).
    type: dict
    required: true
  names:
    description: The inventory names of the hosts.
    type: list
    elements: str
    required: true
  saved:
    description: Addresses of hosts from an earlier setup, by inventory name.
    type: dict
    default: {}
"""

EXAMPLES = r"""
addresses: "{{ (hostvars | ftcluster.cluster.host_addresses(ansible_play_hosts)).addresses }}"
"""

RETURN = r"""
_value:
  description: The C(addresses), and in C(unknown) the names of hosts without an address.
  type: dict
  sample: {addresses: [10.0.0.11], unknown: []}
"""


def host_addresses(
    hostvars: Mapping[str, Mapping[str, Any]],
    names: Iterable[str],
    saved: Mapping[str, str] | None = None,
) -> dict[str, list[str]]:
    """Return the addresses of the hosts, and the names of hosts without an address.

    >>> host_addresses({"a": {"ansible_host": "10.0.0.1"}, "b": {}}, ["a", "b"])
    {'addresses': ['10.0.0.1'], 'unknown': ['b']}
    """
    addresses: dict[str, None] = {}
    unknown = []
    for name in names:
        host = hostvars[name]
        address = (
            (host.get("preflight_facts") or {}).get("network_address")
            or host.get("ftcluster_address")
            or (saved or {}).get(name)
            or host.get("ansible_host")
            or name
        )
        if plain(address):
            addresses[plain(address)] = None
        else:
            unknown.append(name)
    return {"addresses": list(addresses), "unknown": unknown}


class FilterModule:
    def filters(self) -> dict[str, Any]:
        return {"host_addresses": host_addresses}
