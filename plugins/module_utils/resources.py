# Apache-2.0 (see LICENSE)
"""Determines the CPUs, NUMA nodes, memory, disk space and C library that a process may use."""

from __future__ import annotations

import errno
import os
import platform
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.ftcluster.cluster.plugins.module_utils.number_list import (
    number_list,
    ranges,
)

if TYPE_CHECKING:
    Reader = Callable[[Any], str]  # returns the text of a file

READ_ONLY_HINT = (
    "mount it writable (findmnt -T PATH names the mount); after a disk error the kernel mounts a "
    "file system read-only, see dmesg"
)
NODES = "/sys/devices/system/node"


def read(path: str | Path) -> str:
    """Return the text of a file, or "" if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def exists(path: Path) -> bool:
    """Return True if this user can see that a path exists."""
    try:
        path.stat()
    except OSError:  # Path.exists raises some errors, for example if a folder must not be searched
        return False
    return True


def nearest_existing(folder: Path) -> Path:
    """Return the folder if it exists, or else the nearest existing folder above it."""
    while not exists(folder):
        folder = folder.parent
    return folder


def free_bytes(folder: Path) -> int:
    """Return the bytes that an ordinary user can write on a (possibly missing) folder's disk."""
    state = os.statvfs(nearest_existing(folder))
    return state.f_bavail * state.f_frsize


def is_read_only(folder: Path) -> bool:
    """Return True if the file system of a (possibly missing) folder is mounted read-only."""
    try:
        return bool(os.statvfs(nearest_existing(folder)).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def os_problem(error: OSError, path: object) -> str:
    """Return a message about an OSError, with advice if the file system is read-only.

    Args:
        path: path that the message names if the error names none.
    """
    where = error.filename or path
    advice = f": {READ_ONLY_HINT}" if error.errno == errno.EROFS else ""
    return f"{where}: {error.strerror or error}{advice}"


def libc() -> str:
    """Return the name and version of the C library, such as glibc 2.36."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (OSError, ValueError):
        return " ".join(platform.libc_ver()).strip()


def number(text: str) -> int:
    """Convert a string to a whole number; return 0 if it is not a number."""
    return int(text) if text.isdigit() else 0


def cgroup_folders(controller: str, read_file: Reader = read) -> Iterator[Path]:
    """Yield the folders of this process's cgroups, from its own cgroup up to the root cgroup.

    Include cgroups of both versions; of version 1, only the cgroups of one controller.
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
    """Return the CPU quota of this process's cgroup in CPUs, or None without a quota."""
    limits = []
    for folder in cgroup_folders("cpu", read_file):
        quota, period = read_file(folder / "cpu.max").strip().partition(" ")[::2]
        if not quota:  # cgroup version 1
            quota = read_file(folder / "cpu.cfs_quota_us").strip()
            period = read_file(folder / "cpu.cfs_period_us")
        if quota.isdigit():
            limits.append(int(quota) / int(period or 100000))
    return min(limits) if limits else None


def whole_cores(quota: float) -> int:
    """Return the number of cores that a plan may use under a CPU quota, at least one."""
    return max(1, int(quota))


def memory_allowed(read_file: Reader = read) -> set[int] | None:
    """Return the NUMA nodes whose memory this process may use, or None if unknown."""
    for line in read_file("/proc/self/status").splitlines():
        if line.startswith("Mems_allowed_list:"):
            return number_list(line.partition(":")[2])
    return None


def node_memory(node: int, read_file: Reader = read) -> int:
    """Return the memory of a NUMA node in bytes."""
    for line in read_file(f"{NODES}/node{node}/meminfo").splitlines():
        if " MemTotal:" in line:
            return int(line.split()[-2]) * 1024
    return 0


def distances(node: int, online: Iterable[int], read_file: Reader = read) -> dict[int, int]:
    """Return the distance from a NUMA node to each online node; to itself, the distance is 10."""
    texts = read_file(f"{NODES}/node{node}/distance").split()
    return dict(zip(online, map(number, texts)))  # noqa: B905 - Python 3.8


def is_hbm(node: int, near: int | None, cpu_model: str, read_file: Reader = read) -> bool:
    """Return True if a node without cores is high-bandwidth memory (HBM), not for example CXL.

    Compare the bandwidths that the firmware reports. If it reports none, the CPU's name decides.
    """
    own, other = (
        number(read_file(f"{NODES}/node{one}/access0/initiators/read_bandwidth").strip())
        for one in (node, near)
    )
    return own > other if own and other else " Max " in cpu_model


def topology(
    allowed: set[int], memory: int, cpu_model: str = "", read_file: Reader = read
) -> tuple[int, int, list[dict[str, Any]]]:
    """Return the number of sockets, the number of physical cores, and the NUMA nodes of CPUs.

    Args:
        allowed: ids of the CPUs that this process may use.
        memory: memory of the whole host in bytes.
        cpu_model: name of the CPU.
        read_file: function that returns the text of a file, or "".
    """
    package = {}
    core_of = {}
    for cpu in allowed:
        base = f"/sys/devices/system/cpu/cpu{cpu}/topology"
        package[cpu] = read_file(f"{base}/physical_package_id").strip()
        core_of[cpu] = read_file(f"{base}/thread_siblings_list").strip() or str(cpu)
    packages = sorted(set(package.values()), key=lambda text: (number(text), text))
    first: dict[str, int] = {}
    for cpu in sorted(allowed):
        first.setdefault(core_of[cpu], cpu)

    def numa_node(node: int, cpus: Collection[int], size: int) -> dict[str, Any]:
        cores = {first[core_of[cpu]] for cpu in cpus}
        by_socket = {
            str(socket): ",".join(ranges(cpu for cpu in cpus if package[cpu] == name))
            for socket, name in enumerate(packages)
        }
        return {
            "node": node, "cores": len(cores), "cpus": ",".join(ranges(cores)),
            "socket_cpus": {socket: text for socket, text in by_socket.items() if text},
            "memory_bytes": size, "near": None, "hbm": False, "distances": [],
        }  # fmt: skip

    mems = memory_allowed(read_file)
    online = sorted(number_list(read_file(f"{NODES}/online")))
    has = {node: number_list(read_file(f"{NODES}/node{node}/cpulist")) for node in online}
    with_own = [node for node in online if has[node] & allowed]
    if with_own:
        # add the CPUs that the firmware has not assigned to a node
        has[with_own[0]] |= allowed.difference(*has.values())
    nodes = []
    for node in online:
        size = node_memory(node, read_file) if mems is None or node in mems else 0
        if has[node] & allowed or size:
            nodes.append(numa_node(node, has[node] & allowed, size))
    if not with_own:
        # a kernel without NUMA, or a container without /sys
        nodes = [numa_node(0, allowed, memory)]
    with_cores = [node["node"] for node in nodes if node["cores"]]
    with_memory = [node["node"] for node in nodes if node["memory_bytes"]]
    taken = Counter(with_cores + with_memory)
    sockets_of = {node["node"]: set(node["socket_cpus"]) for node in nodes}
    for facts in nodes:
        far = distances(facts["node"], online, read_file)
        if far:
            facts["distances"] = [far.get(node["node"], 0) for node in nodes]
        others = with_memory if facts["cores"] else with_cores
        if others and facts["node"] not in others:

            def distance(
                other: int, far: dict[int, int] = far, own: set[str] = sockets_of[facts["node"]]
            ) -> tuple[int, bool, int, int]:
                # among equally near nodes, use each one equally often
                return far.get(other, 0), not own & sockets_of[other], taken[other], other

            facts["near"] = min(others, key=distance)
            taken[facts["near"]] += 1
        if not facts["cores"] and not has[facts["node"]]:
            facts["hbm"] = is_hbm(facts["node"], facts["near"], cpu_model, read_file)
    if len(online) == 1:
        # the node's size may not include memory that a hypervisor added later
        nodes[0]["memory_bytes"] = memory
    # count cores directly: emulated nodes share cores, so a sum would count cores twice
    return len(packages), len(first), nodes


def memory_bytes(read_file: Reader = read) -> int:
    """Return the memory in bytes that a process may use, within the limits of its cgroups."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    mems = memory_allowed(read_file)
    sizes = {
        node: node_memory(node, read_file)
        for node in number_list(read_file(f"{NODES}/online"))
    }  # fmt: skip
    allowed = sum(size for node, size in sizes.items() if mems is None or node in mems)
    if 0 < allowed < sum(sizes.values()):
        total = min(total, allowed)
    for folder in cgroup_folders("memory", read_file):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = read_file(folder / name).strip()
            if limit.isdigit():
                total = min(total, int(limit))
    return total
