import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.ftcluster.cluster.plugins.action.host_facts import ActionModule, clock_of
from ansible_collections.ftcluster.cluster.plugins.module_utils.number_list import number_list
from ansible_collections.ftcluster.cluster.plugins.modules import host_facts
from ansible_collections.ftcluster.cluster.plugins.modules.host_facts import (
    cpu_quota,
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
    assert host_facts.memory_bytes(reader(files)) == 4096
    assert host_facts.memory_bytes(reader({**files, file: "max\n"})) > 2**20


def node(number: int, cpus: str, kilobytes: int, **more: object) -> dict[str, Any]:
    return {
        "node": number, "cores": len(number_list(cpus)), "cpus": cpus,
        "memory_bytes": kilobytes * 1024, "near": None, "hbm": False, **more,
    }  # fmt: skip


def two_sockets() -> dict[str, str]:
    """Two sockets of two cores of two threads, and a node of memory only of each.

    CPUs 0-3 are the cores' first threads, 4-7 the second ones.
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
        [node(0, "0-1", 1000), node(1, "2-3", 2000), node(2, "", 3000, near=0),
         node(3, "", 4000, near=1)],
    )  # fmt: skip


def test_topology_within_a_cpu_set() -> None:
    files = {**two_sockets(), "/proc/self/status": "Mems_allowed:\t5\nMems_allowed_list:\t0,2\n"}
    assert topology({0, 4}, 9, "", reader(files)) == (
        1, 1, [node(0, "0", 1000), node(2, "", 3000, near=0)],
    )  # fmt: skip


def test_a_core_whose_first_thread_may_not_be_used() -> None:
    found = topology({1, 4, 5}, 9, "", reader(two_sockets()))
    assert found[:2] == (1, 2)
    assert found[2][0] == node(0, "1,4", 1000)


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
    one = {**node(0, "0,3", 0), "memory_bytes": 9}
    assert topology({0, 3}, 9, "", reader({})) == (1, 2, [one])


def test_the_only_node_has_all_memory() -> None:
    files = {
        NODE + "online": "0\n",
        NODE + "node0/cpulist": "0-1\n",
        NODE + "node0/meminfo": "Node 0 MemTotal: 4 kB\n",
    }
    assert topology({0, 1}, 9000, "", reader(files))[2][0]["memory_bytes"] == 9000


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


def test_libraries_are_looked_for_in_the_stack_first(tmp_path: Path) -> None:
    own, hosts = tmp_path / "current/lib", tmp_path / "usr/lib"
    folders = (own, hosts)
    assert host_facts.library(host_facts.OPENMP, folders) == ""
    for folder in (hosts, own):
        folder.mkdir(parents=True)
        (folder / "libiomp5.so").touch()
        assert host_facts.library(host_facts.OPENMP, folders) == str(folder / "libiomp5.so")


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


# --- the Pythons and the stacks


def found_pythons(
    monkeypatch: pytest.MonkeyPatch, answers: dict[str, tuple[int, str]]
) -> list[dict[str, str]]:
    """What is found where programs named as the keys are on the search path and answer so."""

    def which(name: str) -> str | None:
        return f"/usr/bin/{name}" if name in answers else None

    def run_command(argv: list[str]) -> tuple[int, str, str]:
        code, out = answers[Path(argv[0]).name]
        return code, out, "an error" * (code != 0)

    monkeypatch.setattr(host_facts.shutil, "which", which)
    found: list[dict[str, str]] = host_facts.pythons(SimpleNamespace(run_command=run_command))
    return found


OTHER = 12 if sys.version_info[1] != 12 else 13


def test_ansibles_own_python_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ".".join(map(str, sys.version_info[:3]))
    found = found_pythons(
        monkeypatch, {"python3.9": (0, "3.9.2 /usr/bin/python3.9\n"),
                      f"python3.{OTHER}": (0, f"3.{OTHER}.1 /opt/my python/bin/python3\n")},
    )  # fmt: skip
    assert found[0]["version"].startswith(own)
    assert found[0]["path"] == sys.executable
    assert found[1:] == [
        {"version": "3.9.2", "path": "/usr/bin/python3.9"},
        {"version": f"3.{OTHER}.1", "path": "/opt/my python/bin/python3"},
    ]


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        (f"python3.{OTHER}", (127, "")),  # a shim of a version manager without this version
        (f"python3.{sys.version_info[1]}", (0, "3.99.9 /usr/bin/again")),  # it is known already
        ("python3.7", (0, "3.7.1 /usr/bin/python3.7")),  # Ansible does not run with it
        ("python2.7", (0, "2.7.18 /usr/bin/python2.7")),
    ],
)
def test_pythons_that_do_not_count(
    monkeypatch: pytest.MonkeyPatch, name: str, answer: tuple[int, str]
) -> None:
    assert len(found_pythons(monkeypatch, {name: answer})) == 1


def test_pythons_on_the_search_path_are_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"python3.{OTHER}").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))

    def run_command(argv: list[str]) -> tuple[int, str, str]:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    found = host_facts.pythons(SimpleNamespace(run_command=run_command))
    assert len(found) == 2
    assert found[1]["version"] == found[0]["version"]
    assert Path(found[1]["path"]).exists()


def test_the_stack_in_use_is_the_name_of_its_folder(tmp_path: Path) -> None:
    assert host_facts.current_stack(tmp_path) == ""
    (tmp_path / "current").symlink_to(tmp_path / "stacks" / "native-1b2c")
    assert host_facts.current_stack(tmp_path) == "native-1b2c"  # also where it is gone
    (tmp_path / "current").unlink()
    (tmp_path / "current").mkdir()
    assert host_facts.current_stack(tmp_path) == ""
    assert host_facts.current_stack(tmp_path / "none") == ""


def test_only_stacks_that_were_installed_to_their_end_are_there(tmp_path: Path) -> None:
    assert host_facts.finished_stacks(tmp_path / "none") == []
    for name in ("native-2", "native-1", "broken-off", "native-1.staging-00ff"):
        (tmp_path / "stacks" / name).mkdir(parents=True)
    (tmp_path / "stacks" / "file").touch()
    for name in ("native-2", "native-1"):
        (tmp_path / "stacks" / name / ".complete").touch()
    assert host_facts.finished_stacks(tmp_path) == ["native-1", "native-2"]
    assert host_facts.finished_stacks(tmp_path / "stacks" / "file") == []
