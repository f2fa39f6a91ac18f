from typing import Any

import pytest

from ftcluster_common.protocol.launch import Host
from ftcluster_train.health.consistency import (
    busy_hosts,
    expected_kernel,
    find_problems,
    host_rows,
    link_rows,
    package_differences,
)
from ftcluster_train.health.open_ports import HostFirewall
from tests.unit.shell import Said

HOSTS = (Host("node1", "10.0.0.1"), Host("node2", "10.0.0.2"), Host("node3", "10.0.0.3"))
PACKAGES = {"torch": "2.8.0+cpu", "transformers": "4.57.0", "ftcluster-train": "0.1.0"}
SPEED = {"bf16_gflops": 100.0, "fp32_gflops": 50.0, "cpu": "Xeon", "threads": 2}


def answer(rank: int, **changes: Any) -> dict[str, Any]:
    return {
        "rank": rank, "error": "", "hostname": f"host{rank}", "has_address": True,
        "python": "3.11.7", "packages": PACKAGES, "flags": ["amx_bf16", "avx512f"], "busy": [],
        "kernel": "brg_matmul:avx10_1_512_amx", "unreached": [[], [], []], "members": [0, 1, 2],
        "interface": "eth0", "interface_mbits": 25000, "sum_right": True, "all_reduce_ms": 3.0,
        **changes,
    }  # fmt: skip


def test_hosts_that_are_alike_have_no_problems() -> None:
    assert find_problems(HOSTS, [answer(0), answer(1), answer(2)]) == []
    assert find_problems(HOSTS, [answer(1)]) == []
    assert find_problems(HOSTS, []) == []
    # without known CPU flags, every kernel is accepted
    answers = [answer(0, flags=[], kernel="gemm:jit"), answer(1, kernel="x:amx")]
    assert find_problems(HOSTS, answers) == []


def test_all_problems_are_reported_together(said: Said) -> None:
    answers = [
        answer(0, sum_right=False),
        answer(1, has_address=False, kernel="brg_matmul:avx512_core_bf16"),
        answer(2, packages={**PACKAGES, "torch": "2.7.0+cpu"}, kernel=""),
    ]
    found = find_problems(HOSTS, answers)
    assert [(finding.host, finding.kind) for finding in found] == [
        ("node1", "result"), ("node2", "network"), ("node2", "kernel"), ("node3", "kernel"),
        ("node3", "packages"),
    ]  # fmt: skip
    for finding in found:
        said(f"{finding.what}; {finding.hint}")


def test_packages_that_only_one_of_two_hosts_has() -> None:
    one = answer(0, packages={"torch": "2.8.0", "only-here": "1"})
    other = answer(2, packages={"torch": "2.8.0", "only-there": "2"})
    (found,) = package_differences(HOSTS, one, other)
    assert found.what == (
        "differs from node1: only-here missing instead of 1, only-there 2 instead of none"
    )
    assert package_differences(HOSTS, one, {**one, "rank": 1}) == []


@pytest.mark.parametrize(
    ("flags", "kernel"),
    [
        (["avx2", "avx512f", "avx512_bf16", "amx_bf16"], "amx"),
        (["avx512_bf16", "avx512f"], "avx512_core_bf16"),
        (["avx2", "avx512f"], "avx512_core"),
        (["avx2"], "avx2"),
        ([], ""),
    ],
)
def test_the_best_flag_is_what_a_cpu_promises(flags: list[str], kernel: str) -> None:
    assert expected_kernel(flags) == kernel


def test_a_pair_without_a_connection_is_one_problem() -> None:
    apart = {"unreached": [[], [2], [1]]}
    found = find_problems(HOSTS, [answer(0, **apart), answer(1, **apart), answer(2, **apart)])
    assert [(finding.host, finding.what, finding.kind) for finding in found] == [
        ("node2", "no TCP connection between it and node3", "network")
    ]


def test_firewalls_between_hosts_have_the_commands_that_open_them(
    said: Said,
) -> None:
    ports = ("29500-29999", "32768-60999")
    firewalls = {"node2": HostFirewall("ufw", ports), "node3": HostFirewall("firewalld", ports)}
    apart = {"unreached": [[], [2], [1]]}
    [found] = find_problems(HOSTS, [answer(rank, **apart) for rank in range(3)], firewalls)
    said(found.hint)


def test_a_rank_that_stopped_half_way_says_what_it_knows() -> None:
    half = {"rank": 1, "error": "RuntimeError: connection reset", "hostname": "host1"}
    (finding,) = find_problems(HOSTS, [answer(0), half])
    assert (finding.host, finding.kind) == ("node2", "launch")
    assert "connection reset" in finding.what
    (row,) = host_rows(HOSTS, [half])
    assert (row["hostname"], row["python"], row["speed"]) == ("host1", "", None)


def test_a_row_has_the_inventorys_name_and_the_versions_that_are_shown() -> None:
    found = host_rows(HOSTS, [answer(1, packages={"torch": "2.8.0+cpu", "numpy": "2.3"})])
    assert found == [
        {
            "name": "node2", "address": "10.0.0.2", "hostname": "host1", "python": "3.11.7",
            "kernel": "brg_matmul:avx10_1_512_amx",
            "versions": {"torch": "2.8.0+cpu", "transformers": "", "ftcluster-train": ""},
            "interface": "eth0", "interface_mbits": 25000, "speed": None,
            "calls": None,
        }
    ]  # fmt: skip
    # a slow speed is reported with the speed of the others
    slow = {**SPEED, "bf16_gflops": 60.0}
    found = host_rows(
        HOSTS, [answer(0, speed=SPEED), answer(1, speed=slow), answer(2, speed=SPEED)]
    )
    assert [row["speed"]["relative"] for row in found] == [1.0, 0.6, 1.0]


def test_links_of_all_ranks_in_the_hosts_order() -> None:
    one = {"ranks": [1, 2], "latency_us": 30.0, "mb_per_second": 900.0}
    two = {"ranks": [0, 2], "latency_us": 40.0, "mb_per_second": 800.0}
    found = link_rows(HOSTS, [answer(1, links=[one]), answer(0, links=[two]), answer(2)])
    assert found == [
        {"hosts": ["node1", "node3"], "latency_us": 40.0, "mb_per_second": 800.0},
        {"hosts": ["node2", "node3"], "latency_us": 30.0, "mb_per_second": 900.0},
    ]


def test_a_run_busy_hosts_is_said() -> None:
    (found,) = busy_hosts(HOSTS, [answer(0), answer(2, busy=["mrpc-1", "own-2"])])
    assert (found.host, found.kind) == ("node3", "busy")
    assert found.what.startswith("mrpc-1, own-2 is running on it")
