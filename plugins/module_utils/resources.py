# Apache-2.0 (see LICENSE)
"""The CPUs, NUMA nodes, memory, space and C library that a process on this host may use."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.ftcluster.cluster.plugins.module_utils.number_list import (
    number_list,
    ranges,
)

if TYPE_CHECKING:
    Reader = Callable[[Any], str]  # of a path

NODES = "/sys/devices/system/node"


def read(path: str | Path) -> str:
    """The text of a file, or an empty string where it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def exists(path: Path) -> bool:
    """Whether this user can see that a path is there."""
    try:
        path.stat()
    except OSError:  # Path.exists passes some of them on, such as for a folder not to be searched
        return False
    return True


def nearest_existing(folder: Path) -> Path:
    """The folder itself, or the nearest one above it that is there."""
    while not exists(folder):
        folder = folder.parent
    return folder


def free_bytes(folder: Path) -> int:
    """Space that an ordinary user may take where the folder is or would be made."""
    state = os.statvfs(nearest_existing(folder))
    return state.f_bavail * state.f_frsize


def libc() -> str:
    """The C library and its version, such as glibc 2.36."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (OSError, ValueError):
        return " ".join(platform.libc_ver()).strip()


def number(text: str) -> int:
    """A whole number, or 0 where the text is none."""
    return int(text) if text.isdigit() else 0


def cgroup_folders(controller: str, read_file: Reader = read) -> Iterator[Path]:
    """The folders of this process's cgroups, from its own up to the root, of both versions.

    Of version 1 only those of one controller.
    """
    for line in read_file("/proc/self/cgroup").splitlines():
        controllers, path = line.split(":", 2)[1:]
        if controllers and controller not in controllers.split(","):
            continue
        mount = "/sys/fs/cgroup" + (f"/{controller}" if controllers else "")
        folder = Path(mount + path.rstrip("/"))
        while str(folder).startswith(mount):
            yield folder
            folder = folder.parent


def cpu_quota(read_file: Reader = read) -> float | None:
    """CPUs' worth of time that the cgroup's quota allows, or None without a quota."""
    limits = []
    for folder in cgroup_folders("cpu", read_file):
        quota, period = read_file(folder / "cpu.max").strip().partition(" ")[::2]
        if not quota:  # version 1
            quota = read_file(folder / "cpu.cfs_quota_us").strip()
            period = read_file(folder / "cpu.cfs_period_us")
        if quota.isdigit():
            limits.append(int(quota) / int(period or 100000))
    return min(limits) if limits else None


def whole_cores(quota: float) -> int:
    """The cores that a quota is planned as, at least one."""
    return max(1, int(quota))


def memory_allowed(read_file: Reader = read) -> set[int] | None:
    """The NUMA nodes whose memory this process may use, or None where that is not told."""
    for line in read_file("/proc/self/status").splitlines():
        if line.startswith("Mems_allowed_list:"):
            return number_list(line.partition(":")[2])
    return None


def node_memory(node: int, read_file: Reader = read) -> int:
    """The memory of a NUMA node in bytes."""
    for line in read_file(f"{NODES}/node{node}/meminfo").splitlines():
        if " MemTotal:" in line:
            return int(line.split()[-2]) * 1024
    return 0


def nearest(
    node: int, online: Iterable[int], candidates: Collection[int], read_file: Reader = read
) -> int | None:
    """The one of the candidates that is nearest to a NUMA node, or None without candidates."""
    distances = read_file(f"{NODES}/node{node}/distance").split()
    far = {other: int(distance) for other, distance in zip(online, distances)}  # noqa: B905
    return min(candidates, key=lambda other: (far.get(other, 0), other)) if candidates else None


def is_hbm(node: int, near: int | None, cpu_model: str, read_file: Reader = read) -> bool:
    """Whether a node of memory only is faster than that of the cores, and not CXL or persistent.

    The firmware tells the bandwidth of both, or else the CPU's name what it has.
    """
    own, other = (
        number(read_file(f"{NODES}/node{one}/access0/initiators/read_bandwidth").strip())
        for one in (node, near)
    )
    return own > other if own and other else " Max " in cpu_model


def numa_node(number: int, cpus: Collection[int], size: int) -> dict[str, Any]:
    """The facts of a node with these CPUs, one of each core."""
    cores = {"cores": len(cpus), "cpus": ",".join(ranges(cpus))}
    return {"node": number, **cores, "memory_bytes": size, "near": None, "hbm": False}


def topology(
    allowed: set[int], memory: int, cpu_model: str = "", read_file: Reader = read
) -> tuple[int, int, list[dict[str, Any]]]:
    """What a set of CPUs allows: sockets, physical cores, NUMA nodes with cores and memory.

    Takes the memory of the whole host in bytes and the CPU's name.
    """
    packages = set()
    core_of = {}
    for cpu in allowed:
        base = f"/sys/devices/system/cpu/cpu{cpu}/topology"
        packages.add(read_file(f"{base}/physical_package_id").strip())
        core_of[cpu] = read_file(f"{base}/thread_siblings_list").strip() or str(cpu)
    first: dict[str, int] = {}
    for cpu in sorted(allowed):
        first.setdefault(core_of[cpu], cpu)
    mems = memory_allowed(read_file)
    online = sorted(number_list(read_file(f"{NODES}/online")))
    nodes = []
    for node in online:
        cpus = number_list(read_file(f"{NODES}/node{node}/cpulist"))
        here = {first[core_of[cpu]] for cpu in cpus & allowed}
        size = node_memory(node, read_file)
        if here or (not cpus and size and (mems is None or node in mems)):
            nodes.append(numa_node(node, here, size))
    with_cores = [node["node"] for node in nodes if node["cores"]]
    for facts in nodes:
        if not facts["cores"]:
            facts["near"] = nearest(facts["node"], online, with_cores, read_file)
            facts["hbm"] = is_hbm(facts["node"], facts["near"], cpu_model, read_file)
    cores = len(first)  # not the nodes' sum: emulated nodes share their cores
    if not with_cores:
        # a kernel without NUMA, or a container without /sys
        nodes = [numa_node(0, set(first.values()), memory)]
    if len(online) == 1:
        # its own count has been seen without the memory that a hypervisor added later
        nodes[0]["memory_bytes"] = memory
    return len(packages), cores, nodes


def memory_bytes(read_file: Reader = read) -> int:
    """Memory of the machine, or less where a cgroup limits it."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for folder in cgroup_folders("memory", read_file):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = read_file(folder / name).strip()
            if limit.isdigit():
                total = min(total, int(limit))
    return total
