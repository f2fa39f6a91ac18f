from typing import Any

import pytest
from ansible_collections.ftcluster.cluster.plugins.filter.cluster_problems import cluster_problems
from ansible_collections.ftcluster.cluster.plugins.filter.host_notices import host_notices
from ansible_collections.ftcluster.cluster.plugins.filter.host_problems import host_problems

GOOD = {
    "machine": "x86_64", "pythons": [{"version": "3.11.2"}],
    "prefix": "/opt/ftcluster", "prefix_writable": True, "prefix_refused": "",
    "free_bytes": 9 * 10**9, "memory_bytes": 16 * 10**9,
    "cpu_generation": "Sapphire Rapids", "amx": "usable", "kernel": "6.1.0-18-amd64",
}  # fmt: skip
REQUIRED = {
    "machine": "x86_64", "python": "3.10", "free_bytes": 5 * 10**9, "memory_bytes": 3 * 10**9,
}  # fmt: skip


def pythons(*versions: str) -> list[dict[str, str]]:
    return [{"version": version} for version in versions]


def problems(**changes: Any) -> list[str]:
    found: list[str] = host_problems({**GOOD, **changes}, REQUIRED)
    return found


def test_a_good_host_has_no_problems() -> None:
    assert problems() == []
    assert host_notices(GOOD) == []


@pytest.mark.parametrize("name", ["a b", "a\nroot - nofile 1", "$(id)", "{{ x }}", "-x", "x" * 33])
def test_what_is_no_name_of_an_account(name: str) -> None:
    [problem] = problems(rank_user=name)
    assert problem.startswith(f"{name!a} is not a name of an account; set ftcluster_user")
    assert problems(rank_user="ft_user-1") == problems(rank_user="") == []


def test_all_problems_of_a_host_come_together() -> None:
    found = problems(
        machine="aarch64", pythons=pythons("3.9.2", "3.8.1"), prefix_writable=False,
        free_bytes=10**9, memory_bytes=10**9,
    )  # fmt: skip
    assert len(found) == 5
    assert "1.0 GB free at /opt/ftcluster, 5.0 GB are needed" in found[3]
    assert all(";" in problem for problem in found)  # each says what to do


@pytest.mark.parametrize(
    ("there", "enough"),
    [
        (["3.9.20"], False),  # 9 is older than 10
        (["3.8.1", "3.9.20"], False),
        (["3.10.0"], True),
        (["3.13.0"], True),
        (["3.9.2", "3.12.1"], True),  # Ansible's own need not be the one
        (["3.9.2", "3.14.0rc1"], True),
    ],
)
def test_one_python_that_is_new_enough_will_do(there: list[str], enough: bool) -> None:
    found = problems(pythons=pythons(*there))
    if enough:
        assert found == []
    else:
        assert found == [
            f"Python {', '.join(there)} is too old, 3.10 or newer is needed; install one"
        ]


def test_amx_that_cannot_be_used_is_worth_a_notice_only() -> None:
    assert problems(amx="refused") == []
    (refused,) = host_notices({**GOOD, "amx": "refused", "kernel": "5.10.0-28-amd64"})
    assert "its kernel 5.10.0-28-amd64 refuses it" in refused
    assert "; boot Linux 5.16 or newer" in refused
    (hidden,) = host_notices({**GOOD, "amx": "absent"})
    assert "Sapphire Rapids, which has AMX" in hidden
    assert "; have the hypervisor pass" in hidden
    assert host_notices({**GOOD, "amx": "absent", "cpu_generation": "Ice Lake"}) == []


def cluster(**changes: dict[str, Any]) -> dict[str, list[str]]:
    """The problems of node0, node1, ... which have the facts given and good ones otherwise."""
    facts = {
        host: {
            "prefix": "/opt/ftcluster", "network_address": f"10.0.0.{number}",
            "machine_id": f"id{number}", "clock_offset_seconds": 0.0, "clock_error_seconds": 0.01,
            **changed,
        }
        for number, (host, changed) in enumerate(changes.items())
    }  # fmt: skip
    found: dict[str, list[str]] = cluster_problems(facts, {"clock_seconds": 2})
    return found


def off(seconds: float | None, error: float = 0.01) -> dict[str, float | None]:
    return {"clock_offset_seconds": seconds, "clock_error_seconds": error}


def test_good_hosts_are_a_good_cluster() -> None:
    assert cluster(node0={}, node1={}) == {"node0": [], "node1": []}
    assert cluster_problems({}, {}) == {}
    assert cluster_problems({"a": {}, "b": {}}, {}) == {"a": [], "b": []}


def test_clocks_are_compared_with_the_median() -> None:
    # the control node is the one that is wrong here
    found = cluster(
        node0=off(60.2), node1=off(61.0), node2=off(0.0), node3=off(90.5), node4=off(60)
    )
    assert [host for host in found if found[host]] == ["node2", "node3"]
    assert "its clock is 60.2 s behind that of node0" in found["node2"][0]
    assert "its clock is 30.3 s ahead of that of node0" in found["node3"][0]
    assert "timedatectl set-ntp true" in found["node2"][0]


def test_of_two_middle_clocks_the_control_nodes_counts() -> None:
    found = cluster(node0=off(-300.0), node1=off(0.1))
    assert [host for host in found if found[host]] == ["node0"]
    found = cluster(node0=off(300.0), node1=off(0.1), node2=off(0.0), node3=off(301.0))
    assert [host for host in found if found[host]] == ["node0", "node3"]


def test_clocks_are_given_the_error_of_their_measurement() -> None:
    assert not any(cluster(node0=off(0.0, 0.5), node1=off(3.2, 0.8)).values())
    assert any(cluster(node0=off(0.0, 0.5), node1=off(3.4, 0.8)).values())
    assert not any(cluster(node0=off(0.0), node1=off(None)).values())
    assert not any(cluster(node0=off(900.0)).values())


def test_the_minority_of_prefixes() -> None:
    other = {"prefix": "/home/ops/.local/share/ftcluster"}
    found = cluster(node0=other, node1={}, node2={})
    assert [host for host in found if found[host]] == ["node0"]
    assert "that of node1 is /opt/ftcluster" in found["node0"][0]
    assert found["node0"][0].endswith("-e ftcluster_prefix=DIR")
    assert [host for host, texts in cluster(node0={}, node1=other).items() if texts] == ["node1"]


def test_one_machine_by_two_names() -> None:
    same = {"network_address": "10.0.0.9", "machine_id": "one"}
    found = cluster(node0=same, node1={}, alias=same)
    assert found == {
        "node0": [], "node1": [],
        "alias": [
            "it is the same machine as node0 (10.0.0.9); take one of the two out of the inventory"
        ],
    }  # fmt: skip
    # clones of one disk
    assert not any(cluster(node0={"machine_id": "one"}, node1={"machine_id": "one"}).values())


def test_loopback_is_for_clusters_of_one() -> None:
    here = {"network_address": "127.0.0.1"}
    assert cluster(node0=here) == {"node0": []}
    found = cluster(node0=here, node1={"network_address": "::1"}, node2={})
    assert found["node0"] == [
        "other hosts cannot reach it at 127.0.0.1; "
        "set ftcluster_address=ADDRESS for node0 in the inventory"
    ]
    assert len(found["node1"]) == 1
    assert found["node2"] == []


def test_hosts_without_root_among_hosts_with_it() -> None:
    has, lacks = {"rank_user": "ftcluster"}, {"rank_user": ""}
    found = cluster(node0=lacks, node1=has, node2=lacks, node3=has)
    assert [host for host in found if found[host]] == ["node0", "node2"]
    (problem,) = found["node0"]
    assert problem.startswith("root cannot be had here, but on node1, so ranks would run as other")
    assert problem.endswith("or do without it on all hosts with -e ftcluster_root=false")


def test_hosts_that_all_have_root_or_all_lack_it() -> None:
    has, lacks = {"rank_user": "ftcluster"}, {"rank_user": ""}
    assert not any(cluster(node0=has, node1=has).values())
    assert not any(cluster(node0=lacks, node1=lacks).values())


def test_a_host_of_which_nothing_is_known_does_not_lack_root() -> None:
    has, lacks = {"rank_user": "ftcluster"}, {"rank_user": ""}
    assert not any(cluster(node0=has, node1={}).values())
    assert not any(cluster(node0={}, node1=lacks).values())
    found = cluster(node0={}, node1=has, node2=lacks)
    assert [host for host in found if found[host]] == ["node2"]
