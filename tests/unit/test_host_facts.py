from typing import Any

from plugins.filter.host_problems import host_problems
from plugins.modules.host_facts import cpu_list, quota_cores

GOOD = {
    "machine": "x86_64", "python": "3.11.2", "python_has_venv": True, "prefix": "/opt/ftcluster",
    "prefix_writable": True, "has_stack": False, "free_bytes": 9 * 10**9,
    "memory_bytes": 16 * 10**9,
}  # fmt: skip
REQUIRED = {
    "machine": "x86_64", "python": "3.11", "free_bytes": 5 * 10**9,
    "free_bytes_with_stack": 10**9, "memory_bytes": 3 * 10**9,
}  # fmt: skip


def problems(**changes: Any) -> list[str]:
    found: list[str] = host_problems({**GOOD, **changes}, REQUIRED)
    return found


def test_a_good_host_has_no_problems() -> None:
    assert problems() == []


def test_all_problems_of_a_host_come_together() -> None:
    found = problems(
        machine="aarch64", python="3.9.2", python_has_venv=False, prefix_writable=False,
        free_bytes=10**9, memory_bytes=10**9,
    )  # fmt: skip
    assert len(found) == 6
    assert "1.0 GB free at /opt/ftcluster, 5.0 GB are needed" in found[4]
    assert all(";" in problem for problem in found)  # each says what to do


def test_a_stack_that_is_there_needs_little_more() -> None:
    assert problems(free_bytes=2 * 10**9, has_stack=True) == []


def test_python_3_9_is_older_than_3_11() -> None:
    assert problems(python="3.9.20")
    assert not problems(python="3.13.0")


def test_cpu_lists() -> None:
    assert cpu_list("0-3,8,10-11\n") == {0, 1, 2, 3, 8, 10, 11}
    assert cpu_list("") == set()


def test_cgroup_quotas_of_both_versions() -> None:
    def reader(files: dict[str, str]) -> Any:
        return lambda path: files.get(str(path), "")

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
