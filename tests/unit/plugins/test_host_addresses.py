from typing import Any

import pytest
from ansible_collections.ftcluster.cluster.plugins.filter.host_addresses import host_addresses

FACTS: dict[str, Any] = {"preflight_facts": {"network_address": "10.0.0.1"}}
GIVEN = {"ftcluster_address": "10.0.0.2"}
PLACE = {"ansible_host": "10.0.0.4"}


@pytest.mark.parametrize(
    ("host", "saved", "address"),
    [
        ({**FACTS, **GIVEN, **PLACE}, "10.0.0.3", "10.0.0.1"),
        ({**GIVEN, **PLACE}, "10.0.0.3", "10.0.0.2"),
        ({**PLACE, "preflight_facts": {}}, "10.0.0.3", "10.0.0.3"),
        (PLACE, "", "10.0.0.4"),
        ({}, "", ""),
        ({"ansible_host": "node.example"}, "", ""),
        ({"ansible_host": "FD00::0001"}, "", "fd00::1"),
        ({"ansible_host": "fe80::1%eth0"}, "", "fe80::1"),  # the form of addresses in packets
    ],
)
def test_an_address_or_the_name_of_a_host_without_one(
    host: dict[str, Any], saved: str, address: str
) -> None:
    found = host_addresses({"node1": host}, ["node1"], {"node1": saved} if saved else None)
    assert found == {
        "addresses": [address] if address else [],
        "unknown": [] if address else ["node1"],
    }
