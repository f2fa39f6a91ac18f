"""The memory and CPU time available on a host, also in a container with a limit."""

import pytest

from ftcluster_train.io.machine import cpu_quota, free_memory

GB = 10**9
MEMINFO = {"/proc/meminfo": "MemTotal: 9000000 kB\nMemAvailable: 8000000 kB\n"}
V2 = {
    "/proc/self/cgroup": "0::/pod/rank\n",
    "/sys/fs/cgroup/pod/rank/memory.max": "max\n",
    "/sys/fs/cgroup/pod/memory.max": f"{3 * GB}\n",
    "/sys/fs/cgroup/pod/memory.current": f"{2 * GB}\n",
    "/sys/fs/cgroup/pod/memory.stat": f"anon {GB}\ninactive_file {GB // 2}\n",
}
V1 = {
    "/proc/self/cgroup": "9:name=systemd:/x\n4:memory,cpu:/pod\n0::/\n",
    "/sys/fs/cgroup/memory/pod/memory.limit_in_bytes": f"{3 * GB}",
    "/sys/fs/cgroup/memory/pod/memory.usage_in_bytes": f"{3 * GB}",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
    "/sys/fs/cgroup/memory/memory.usage_in_bytes": f"{4 * GB}",
}


@pytest.mark.parametrize(
    ("files", "free"), [({}, 8_192_000_000), (V2, 1_500_000_000), (V1, 0)], ids=["no", "v2", "v1"]
)
def test_the_nearest_limit_counts(files: dict[str, str], free: int) -> None:
    found = MEMINFO | files
    assert free_memory(lambda path: found.get(str(path), "")) == free


def test_the_smallest_quota_of_cpu_time_counts() -> None:
    pod = "/sys/fs/cgroup/pod"
    version2 = {f"{pod}/rank/cpu.max": "max 100000\n", f"{pod}/cpu.max": "250000 100000\n"}
    version1 = {"/proc/self/cgroup": "4:cpu,cpuacct:/pod\n",
                "/sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us": "-1\n",
                "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
                "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}  # fmt: skip
    for files, quota in ((V2, None), (V2 | version2, 2.5), (version1, 0.5)):
        assert cpu_quota(lambda path, files=files: files.get(str(path), "")) == quota  # type: ignore[misc]


def test_this_machine_has_some() -> None:
    assert 0 < free_memory() < 1 << 50
