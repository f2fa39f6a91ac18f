import importlib
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plugins.action.host_facts import ActionModule, clock_of

# The module imports these by the name that the collection has once it is installed.
for name in ("cpu", "network"):
    sys.modules[f"ansible_collections.ftcluster.cluster.plugins.module_utils.{name}"] = (
        importlib.import_module(f"plugins.module_utils.{name}")
    )

host_facts = importlib.import_module("plugins.modules.host_facts")
cpu_list, quota_cores, topology = (
    host_facts.cpu_list, host_facts.quota_cores, host_facts.topology,
)  # fmt: skip
CPU = "/sys/devices/system/cpu/cpu"
NODE = "/sys/devices/system/node/"


def reader(files: dict[str, str]) -> Any:
    return lambda path: files.get(str(path), "")


def test_cpu_lists() -> None:
    assert cpu_list("0-3,8,10-11\n") == {0, 1, 2, 3, 8, 10, 11}
    assert cpu_list("") == set()


def test_cgroup_quotas_of_both_versions() -> None:
    assert quota_cores(reader({})) is None
    version2 = {
        "/proc/self/cgroup": "0::/a/b\n",
        "/sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
        "/sys/fs/cgroup/a/cpu.max": "250000 100000\n",
    }
    assert quota_cores(reader(version2)) == 2
    version1 = {
        "/proc/self/cgroup": "4:cpu,cpuacct:/x\n0::/\n",
        "/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "50000\n",
        "/sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000\n",
    }
    assert quota_cores(reader(version1)) == 1  # half a core is planned as one


def two_sockets() -> dict[str, str]:
    """Two sockets of two cores of two threads, CPUs 0-3 and 4-7 being first and second threads."""
    files = {NODE + "online": "0-3\n"}
    for cpu in range(8):
        core = cpu % 4
        files[f"{CPU}{cpu}/topology/physical_package_id"] = f"{core // 2}\n"
        files[f"{CPU}{cpu}/topology/thread_siblings_list"] = f"{core},{core + 4}\n"
    for node, cpus in enumerate(["0-1,4-5", "2-3,6-7", "", ""]):
        files[f"{NODE}node{node}/cpulist"] = cpus + "\n"
        files[f"{NODE}node{node}/meminfo"] = (
            f"Node {node} MemTotal:       {node + 1}000 kB\nNode {node} MemFree:  5 kB\n"
        )
    return files


def test_topology_of_two_sockets_with_memory_of_their_own() -> None:
    assert topology(set(range(8)), 9, reader(two_sockets())) == (
        2, 4,
        [
            {"node": 0, "cores": 2, "memory_bytes": 1024000},
            {"node": 1, "cores": 2, "memory_bytes": 2048000},
            {"node": 2, "cores": 0, "memory_bytes": 3072000},
            {"node": 3, "cores": 0, "memory_bytes": 4096000},
        ],
    )  # fmt: skip


def test_topology_within_a_cpu_set() -> None:
    files = {**two_sockets(), "/proc/self/status": "Mems_allowed:\t5\nMems_allowed_list:\t0,2\n"}
    assert topology({0, 4}, 9, reader(files)) == (
        1, 1,
        [
            {"node": 0, "cores": 1, "memory_bytes": 1024000},
            {"node": 2, "cores": 0, "memory_bytes": 3072000},
        ],
    )  # fmt: skip


def test_topology_without_sys() -> None:
    one = [{"node": 0, "cores": 2, "memory_bytes": 9}]
    assert topology({0, 3}, 9, reader({})) == (1, 2, one)


def test_the_only_node_has_all_memory() -> None:
    files = {
        NODE + "online": "0\n",
        NODE + "node0/cpulist": "0-1\n",
        NODE + "node0/meminfo": "Node 0 MemTotal: 4 kB\n",
    }
    assert topology({0, 1}, 9000, reader(files))[2][0]["memory_bytes"] == 9000


def test_the_word_in_force() -> None:
    assert host_facts.chosen("always [madvise] never\n") == "madvise"
    assert host_facts.chosen("") == ""


def test_os_release_as_distributions_write_it() -> None:
    text = (
        '# a comment\nPRETTY_NAME="Rocky Linux 9.3 (Blue Onyx)"\nID="rocky"\n'
        'ID_LIKE="rhel centos fedora"\nVERSION_ID=\'9.3\'\nBROKEN="open\n\n'
    )
    found = host_facts.os_release(reader({"/usr/lib/os-release": text}))
    assert found["PRETTY_NAME"] == "Rocky Linux 9.3 (Blue Onyx)"
    assert (found["ID"], found["VERSION_ID"]) == ("rocky", "9.3")
    assert found["ID_LIKE"] == "rhel centos fedora"
    assert host_facts.os_release(reader({})) == {}


def test_cpu_of_cpuinfo() -> None:
    found = host_facts.cpu_facts({
        "vendor_id": "GenuineIntel", "cpu family": "6", "model": "106", "stepping": "6",
        "model name": "Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz",
        "flags": "fpu avx2 avx512_vnni",
    })  # fmt: skip
    assert found == {
        "cpu_model": "Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz",
        "cpu_flags": ["avx2", "avx512_vnni"], "cpu_vendor": "GenuineIntel", "cpu_family": 6,
        "cpu_model_number": 106, "cpu_stepping": 6, "cpu_generation": "Ice Lake", "amx": "absent",
    }  # fmt: skip
    unknown = host_facts.cpu_facts({"stepping": "unknown"})
    assert (unknown["cpu_stepping"], unknown["cpu_generation"]) == (0, "other")


def test_where_a_prefix_could_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writable = host_facts.writable
    file = tmp_path / "file"
    file.touch()
    assert writable(tmp_path / "a" / "b")
    assert not writable(file, has_root=True)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert not writable(tmp_path / "a" / "b")
    assert writable(tmp_path / "a" / "b", has_root=True)
    assert not writable(Path("/proc/a"), has_root=True)
    assert not writable(Path("/sys/a"), has_root=True)
    assert writable(Path("/system/a"), has_root=True)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    assert not writable(tmp_path / "a" / "b", has_root=True)


def test_a_folder_that_may_not_be_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    stat = Path.stat

    def refusing(path: Path, **options: Any) -> Any:
        if path.is_relative_to("/usr/lib"):
            raise PermissionError(13, "Permission denied")
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", refusing)
    assert host_facts.nearest_existing(Path("/usr/lib/a/b")) == Path("/usr")


def test_the_clock_of_the_shortest_round_trip() -> None:
    assert clock_of([]) == (None, None)
    assert clock_of([(100.0, 161.0, 104.0), (200.0, 260.5, 201.0)]) == (60.0, 0.5)


@pytest.mark.parametrize(
    ("rc", "stdout", "known"),
    [
        (0, "1795273156.110225324\n", True),
        (0, "Welcome to node0!\r\n1795273156.110225324\r\n", True),
        (0, "1795273156.%N\n", False),  # busybox
        (127, "", False),
    ],
)
def test_what_date_answers(rc: int, stdout: str, known: bool) -> None:
    action = object.__new__(ActionModule)
    action._low_level_execute_command = lambda *_, **__: {"rc": rc, "stdout": stdout}
    sample = action._sample()
    assert (sample is not None) == known
    assert sample is None or round(sample[1]) == 1795273156
