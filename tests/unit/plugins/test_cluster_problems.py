from typing import Any

import pytest
from ansible_collections.ftcluster.cluster.plugins.filter.cluster_problems import cluster_problems

Problems = dict[str, list[dict[str, str]]]


def bad(found: Problems) -> list[str]:
    """Return the hosts with problems."""
    return [host for host in found if found[host]]


def cluster(**changes: dict[str, Any]) -> Problems:
    """Return the problems of node0, node1, ... with the given facts and good facts otherwise."""
    facts = {
        host: {
            "prefix": "/opt/ftcluster", "network_address": f"10.0.0.{number}",
            "machine_id": f"id{number}", "clock_offset_seconds": 0.0, "clock_error_seconds": 0.01,
            **changed,
        }
        for number, (host, changed) in enumerate(changes.items())
    }  # fmt: skip
    found: Problems = cluster_problems(facts, {"clock_seconds": 2})
    return found


def off(seconds: float | None, error: float = 0.01) -> dict[str, float | None]:
    return {"clock_offset_seconds": seconds, "clock_error_seconds": error}


def test_good_hosts_are_a_good_cluster() -> None:
    assert cluster(node0={}, node1={}) == {"node0": [], "node1": []}
    assert cluster_problems({}, {}) == {}
    assert cluster_problems({"a": {}, "b": {}}, {}) == {"a": [], "b": []}


def test_clocks_are_compared_with_the_median() -> None:
    # here the control node's clock is wrong
    found = cluster(
        node0=off(60.2), node1=off(61.0), node2=off(0.0), node3=off(90.5), node4=off(60)
    )
    assert bad(found) == ["node2", "node3"]
    assert "its clock is 60.2 s behind the clock of node0" in found["node2"][0]["what"]
    assert "its clock is 30.3 s ahead of the clock of node0" in found["node3"][0]["what"]
    # of two middle clocks, the clock nearer to the control node's is used
    found = cluster(node0=off(-300.0), node1=off(0.1))
    assert bad(found) == ["node0"]
    found = cluster(node0=off(300.0), node1=off(0.1), node2=off(0.0), node3=off(301.0))
    assert bad(found) == ["node0", "node3"]
    # clocks are allowed the error of their measurement
    assert not bad(cluster(node0=off(0.0, 0.5), node1=off(3.2, 0.8)))
    assert bad(cluster(node0=off(0.0, 0.5), node1=off(3.4, 0.8)))
    assert not bad(cluster(node0=off(0.0), node1=off(None)))
    assert not bad(cluster(node0=off(900.0)))


def test_the_minority_of_prefixes_and_of_currencies() -> None:
    other = {"prefix": "/home/ops/.local/share/ftcluster"}
    found = cluster(node0=other, node1={}, node2={})
    assert bad(found) == ["node0"]
    assert "the folder of node1 is /opt/ftcluster" in found["node0"][0]["what"]
    assert bad(cluster(node0={}, node1=other)) == ["node1"]
    # prices must have one currency
    prices = {"a": "4 USD", "b": "5 USD", "c": "4 EUR", "d": "", "e": "4"}
    found = cluster(**{name: {"price_per_hour": price} for name, price in prices.items()})
    assert bad(found) == ["c", "e"]


def test_one_machine_by_two_names() -> None:
    same = {"network_address": "10.0.0.9", "machine_id": "one"}
    found = cluster(node0=same, node1={}, alias=same)
    assert bad(found) == ["alias"]
    assert found["alias"][0]["what"] == "it is the same machine as node0 (10.0.0.9)"
    # clones of one disk have the same machine id
    assert not bad(cluster(node0={"machine_id": "one"}, node1={"machine_id": "one"}))
    # loopback is only for clusters of one host
    here = {"network_address": "127.0.0.1"}
    assert not bad(cluster(node0=here))
    found = cluster(node0=here, node1={"network_address": "::1"}, node2={})
    assert bad(found) == ["node0", "node1"]
    assert "ftcluster_address=ADDRESS for node0" in found["node0"][0]["hint"]
    # Hydra reads the text after the first colon of a line as a number of ranks
    found = cluster(node0={"network_address": "2001:db8::10"}, node1={})
    assert bad(found) == ["node0"]
    assert "mpirun reaches hosts only over IPv4" in found["node0"][0]["what"]
    assert not bad(cluster(node0={"network_address": "2001:db8::10"}))


HAS, LACKS = {"rank_user": "ftcluster"}, {"rank_user": ""}


@pytest.mark.parametrize(
    ("hosts", "without"),
    [
        ([LACKS, HAS, LACKS, HAS], ["node0", "node2"]),
        ([HAS, HAS], []),
        ([LACKS, LACKS], []),
        # nothing is known about a host without facts
        ([HAS, {}], []),
        ([{}, LACKS], []),
        ([{}, HAS, LACKS], ["node2"]),
    ],
)
def test_hosts_without_root_among_hosts_with_it(
    hosts: list[dict[str, Any]], without: list[str]
) -> None:
    found = cluster(**{f"node{number}": facts for number, facts in enumerate(hosts)})
    assert bad(found) == without


def test_a_host_without_root_is_named_with_the_reason_that_sudo_gave() -> None:
    refused = {**LACKS, "no_root_because": "ops is not in the sudoers file."}
    ((finding,),) = filter(None, cluster(node0=HAS, node1=refused).values())
    assert finding["what"] == (
        "root is available on node0, but not here (ops is not in the sudoers file.), so ranks "
        "would run as different users"
    )
