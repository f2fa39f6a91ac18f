"""The facts of hosts that the role verify passes to its program."""

from typing import Any

from ansible_collections.ftcluster.cluster.plugins.filter.verify_request import verify_request

from ftcluster_common.protocol.network import HostNetwork

FACTS: dict[str, Any] = {
    "nics": [{"name": "eth0", "speed_mbits": 1000}, {"name": "veth0", "speed_mbits": None}],
    "network_interface": "eth0", "network_provider": "auto", "rdma": [], "rdma_libraries": [],
    "locks_memory": False, "rank_user": "ftcluster", "hostname": "a", "cores": 8, "ssh_port": 22,
    "host_firewall": "ufw", "local_ports": ["1024-65535"], "network_address": "10.0.0.1",
    "firewall_rules": True,
}  # fmt: skip


def test_a_host_with_facts_and_a_head_that_limit_leaves_out() -> None:
    places = {"a": "a.example", "b": "b.example", "c": "c.example", "d": ""}
    answer = verify_request({"a": FACTS, "b": {}, "c": {}, "d": {}}, places, {"b": "10.0.0.2"})
    request = answer["request"]
    network = request.pop("networks")
    assert request == {
        "hosts": [
            {"name": "a", "address": "10.0.0.1"},
            {"name": "b", "address": "10.0.0.2"},
            {"name": "c", "address": "c.example"},
            {"name": "d", "address": "d"},
        ],
        "cores": {"a": 8, "b": 0, "c": 0, "d": 0},
        "mbits": {"a": {"eth0": 1000}, "b": {}, "c": {}, "d": {}},
        "firewalls": {"a": {"program": "ufw", "ports": ["29500-29999", "1024-65535"]}},
        "guarded": ["a"],
    }
    assert answer["calls"] == [
        {"name": "a", "address": "a.example", "ssh_port": 22, "local_ports": ["1024-65535"]}
    ]
    assert list(network) == ["a"]
    expected = HostNetwork("eth0", locks_memory=True)  # setup raises the limit of its account
    assert HostNetwork.from_dict(network["a"]) == expected
