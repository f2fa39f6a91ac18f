from typing import Any

import pytest
from ansible_collections.ftcluster.cluster.plugins.module_utils.number_list import number_list
from ansible_collections.ftcluster.cluster.plugins.module_utils.resources import (
    cpu_quota,
    libc,
    memory_bytes,
    topology,
    whole_cores,
)

CPU = "/sys/devices/system/cpu/cpu"
NODE = "/sys/devices/system/node/"


def reader(files: dict[str, str]) -> Any:
    return lambda path: files.get(str(path), "")


def test_cgroup_quotas_of_both_versions() -> None:
    assert cpu_quota(reader({})) is None
    version2 = {
        "/proc/self/cgroup": "0::/a/b\n",
        "/sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
        "/sys/fs/cgroup/a/cpu.max": "250000 100000\n",
    }
    assert cpu_quota(reader(version2)) == 2.5
    version1 = {
        "/proc/self/cgroup": "5:memory:/y\n4:cpu,cpuacct:/x/y\n0::/\n",
        "/sys/fs/cgroup/cpu/x/y/cpu.cfs_quota_us": "-1\n",
        "/sys/fs/cgroup/cpu/x/y/cpu.cfs_period_us": "100000\n",
        "/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "50000\n",
        "/sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000\n",
    }
    assert cpu_quota(reader(version1)) == 0.5


def test_a_quota_in_a_container_that_sees_only_its_own_cgroup() -> None:
    files = {
        "/proc/self/cgroup": "4:cpu,cpuacct:/docker/1234\n",
        "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n",
        "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    }
    assert cpu_quota(reader(files)) == 2


@pytest.mark.parametrize(("quota", "cores"), [(0.5, 1), (1.0, 1), (2.9, 2)])
def test_a_quota_is_planned_as_whole_cores(quota: float, cores: int) -> None:
    assert whole_cores(quota) == cores


@pytest.mark.parametrize(
    ("own", "file"),
    [("0::/a/b\n", "/sys/fs/cgroup/a/memory.max"),
     ("3:memory:/a/b\n", "/sys/fs/cgroup/memory/a/memory.limit_in_bytes")],
)  # fmt: skip
def test_memory_is_what_the_cgroup_allows(own: str, file: str) -> None:
    files = {"/proc/self/cgroup": own, file: "4096\n"}
    assert memory_bytes(reader(files)) == 4096
    assert memory_bytes(reader({**files, file: "max\n"})) > 2**20


def node(number: int, cpus: str, kilobytes: int, **more: object) -> dict[str, Any]:
    return {
        "node": number, "cores": len(number_list(cpus)), "cpus": cpus, "socket_cpus": {},
        "memory_bytes": kilobytes * 1024, "near": None, "hbm": False, "distances": [], **more,
    }  # fmt: skip


def two_sockets() -> dict[str, str]:
    """Describe two sockets with two cores of two threads, and a memory-only node for each.

    CPUs 0-3 are the cores' first threads, CPUs 4-7 the second threads.
    """
    files = {NODE + "online": "0-3\n"}
    for cpu in range(8):
        core = cpu % 4
        files[f"{CPU}{cpu}/topology/physical_package_id"] = f"{core // 2}\n"
        files[f"{CPU}{cpu}/topology/thread_siblings_list"] = f"{core},{core + 4}\n"
    distances = ["10 21 13 23", "21 10 23 13", "13 23 10 23", "23 13 23 10"]
    for number, cpus in enumerate(["0-1,4-5", "2-3,6-7", "", ""]):
        files[f"{NODE}node{number}/cpulist"] = cpus + "\n"
        files[f"{NODE}node{number}/distance"] = distances[number] + "\n"
        files[f"{NODE}node{number}/meminfo"] = (
            f"Node {number} MemTotal:       {number + 1}000 kB\nNode {number} MemFree:  5 kB\n"
        )
    return files


def test_topology_of_two_sockets_with_memory_of_their_own() -> None:
    assert topology(set(range(8)), 9, "", reader(two_sockets())) == (
        2, 4,
        [node(0, "0-1", 1000, socket_cpus={"0": "0-1,4-5"}, distances=[10, 21, 13, 23]),
         node(1, "2-3", 2000, socket_cpus={"1": "2-3,6-7"}, distances=[21, 10, 23, 13]),
         node(2, "", 3000, near=0, distances=[13, 23, 10, 23]),
         node(3, "", 4000, near=1, distances=[23, 13, 23, 10])],
    )  # fmt: skip


def test_topology_within_a_cpu_set() -> None:
    files = {**two_sockets(), "/proc/self/status": "Mems_allowed:\t5\nMems_allowed_list:\t0,2\n"}
    assert topology({0, 4}, 9, "", reader(files)) == (
        1, 1, [node(0, "0", 1000, socket_cpus={"0": "0,4"}, distances=[10, 13]),
               node(2, "", 3000, near=0, distances=[13, 10])],
    )  # fmt: skip


def test_memory_that_a_cpu_set_forbids_does_not_count() -> None:
    files = {**two_sockets(), "/proc/self/status": "Mems_allowed_list:\t1,3\n"}
    assert memory_bytes(reader(files)) == 6000 * 1024
    nodes = topology({0, 1}, 9, "", reader(files))[2]
    assert [(one["node"], one["memory_bytes"], one["near"]) for one in nodes] == [
        (0, 0, 1), (1, 2000 * 1024, 0), (3, 4000 * 1024, 0),
    ]  # fmt: skip


def test_a_cpu_that_is_on_no_node_is_used() -> None:
    files = {**two_sockets(), f"{NODE}node1/cpulist": "3,6-7\n"}
    assert [one["cpus"] for one in topology({0, 2, 3}, 9, "", reader(files))[2][:2]] == ["0,2", "3"]


def test_a_core_whose_first_thread_may_not_be_used() -> None:
    found = topology({1, 4, 5}, 9, "", reader(two_sockets()))
    assert found[:2] == (1, 2)
    assert (found[2][0]["cpus"], found[2][0]["socket_cpus"]) == ("1,4", {"0": "1,4-5"})


@pytest.mark.parametrize(
    ("model", "of_cores", "of_memory", "hbm"),
    [
        ("Intel(R) Xeon(R) CPU Max 9480", "", "", True),
        ("Intel(R) Xeon(R) Gold 6248", "", "", False),  # persistent memory
        ("Intel(R) Xeon(R) Platinum 8592+", "200000\n", "25000\n", False),  # CXL
        ("Genuine Intel(R) CPU 0000%@", "128000\n", "400000\n", True),
    ],
)
def test_memory_without_cores_is_hbm_or_slower(
    model: str, of_cores: str, of_memory: str, hbm: bool
) -> None:
    files = two_sockets()
    for number, bandwidth in ((0, of_cores), (1, of_cores), (2, of_memory), (3, of_memory)):
        files[f"{NODE}node{number}/access0/initiators/read_bandwidth"] = bandwidth
    nodes = topology(set(range(8)), 9, model, reader(files))[2]
    assert [found["hbm"] for found in nodes] == [False, False, hbm, hbm]


def test_emulated_nodes_share_their_cores() -> None:
    files = {**two_sockets(), f"{NODE}node1/cpulist": "0-1,4-5\n"}
    _, cores, nodes = topology({0, 1, 4, 5}, 9, "", reader(files))
    assert cores == 2
    assert [found["cpus"] for found in nodes] == ["0-1", "0-1", "", ""]


def test_topology_without_sys() -> None:
    one = {**node(0, "0,3", 0, socket_cpus={"0": "0,3"}), "memory_bytes": 9}
    assert topology({0, 3}, 9, "", reader({})) == (1, 2, [one])


def test_the_only_node_has_all_memory() -> None:
    files = {
        NODE + "online": "0\n",
        NODE + "node0/cpulist": "0-1\n",
        NODE + "node0/meminfo": "Node 0 MemTotal: 4 kB\n",
    }
    assert topology({0, 1}, 9000, "", reader(files))[2][0]["memory_bytes"] == 9000


def test_the_c_library_has_two_numbers() -> None:
    kind, _, version = libc().partition(" ")
    assert kind in ("glibc", "musl")
    assert [part.isdigit() for part in version.split(".")[:2]] == [True, True]
