#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Reads what a host is: CPU, cores, memory, disk, Python. Changes nothing."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_facts
short_description: What a training cluster needs to know of a host
description:
  - Reads CPU, cores, NUMA nodes, memory, free space, Python and allocator of a host.
  - Limits of the process count - its CPU set and cgroup quota - because ranks run within them.
  - Changes nothing and needs no privileges.
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
options:
  prefix:
    description:
      - The folder that the cluster lives in on this host.
      - Left out, C(/opt/ftcluster) for root and C(~/.local/share/ftcluster) for anyone else.
    type: str
    default: ""
attributes:
  check_mode:
    description: Runs the same in check mode.
    support: full
"""

EXAMPLES = r"""
- name: Read what the host is
  ftcluster.cluster.host_facts:
  register: host
"""

RETURN = r"""
facts:
  description: What was found; sizes in bytes.
  returned: always
  type: dict
  sample:
    cpu_model: Intel(R) Xeon(R) Platinum 8488C
    cpu_flags: [amx_bf16, amx_tile, avx512_bf16, avx512_vnni]
    cores: 32
    threads: 64
    numa_nodes: 1
    memory_bytes: 268435456000
"""

import os  # noqa: E402
import platform  # noqa: E402
import socket  # noqa: E402
from pathlib import Path  # noqa: E402

from ansible.module_utils.basic import AnsibleModule  # noqa: E402

# what oneDNN chooses its kernels by, names as in /proc/cpuinfo
FLAGS = (
    "avx2", "fma", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16",
    "avx_vnni", "amx_tile", "amx_int8", "amx_bf16", "amx_fp16",
)  # fmt: skip
# with the profiler or without it; where the distributions' packages put them
TCMALLOC = ("libtcmalloc.so.4", "libtcmalloc_minimal.so.4")
LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/usr/local/lib",
)


def read(path):
    """The text of a file, or an empty string where it cannot be read."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def cpu_list(text):
    """The numbers of a kernel CPU list such as 0-3,8."""
    numbers = set()
    for part in text.strip().split(","):
        if part:
            first, dash, last = part.partition("-")
            numbers.update(range(int(first), int(last if dash else first) + 1))
    return numbers


def quota_cores(read_file=read):
    """Whole cores that the cgroup's CPU quota allows, or None without a quota."""
    own = {}
    for line in read_file("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            own[controller] = path.rstrip("/")
    limits = []
    folder = Path("/sys/fs/cgroup" + own.get("", ""))
    while str(folder).startswith("/sys/fs/cgroup"):
        quota, _, period = read_file(folder / "cpu.max").strip().partition(" ")
        if quota.isdigit():
            limits.append(int(quota) / int(period))
        folder = folder.parent
    version1 = "/sys/fs/cgroup/cpu" + own.get("cpu", "")
    quota = read_file(version1 + "/cpu.cfs_quota_us").strip()
    if quota.isdigit():
        limits.append(int(quota) / int(read_file(version1 + "/cpu.cfs_period_us") or 100000))
    return max(1, int(min(limits))) if limits else None


def topology():
    """Threads and physical cores this process may use, and the NUMA nodes they are on."""
    allowed = os.sched_getaffinity(0)
    cores = set()
    for cpu in allowed:
        base = f"/sys/devices/system/cpu/cpu{cpu}/topology"
        siblings = read(f"{base}/thread_siblings_list").strip()
        cores.add(siblings or str(cpu))
    nodes = [
        path
        for path in Path("/sys/devices/system/node").glob("node[0-9]*")
        if cpu_list(read(path / "cpulist")) & allowed
    ]
    quota = quota_cores()
    limit = min(len(cores), quota) if quota else len(cores)
    return len(allowed), limit, min(max(1, len(nodes)), limit)


def memory_bytes():
    """Memory of the machine, or less where a cgroup limits it."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        limit = read(path).strip()
        if limit.isdigit():
            total = min(total, int(limit))
    return total


def nearest_existing(folder):
    """The folder itself, or the nearest one above it that is there."""
    while not folder.exists():
        folder = folder.parent
    return folder


def free_bytes(folder):
    """Space that an ordinary user may take where the folder is or would be made."""
    state = os.statvfs(nearest_existing(folder))
    return state.f_bavail * state.f_frsize


def writable(folder):
    """Whether this user could make and fill the folder."""
    there = nearest_existing(folder)
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def tcmalloc():
    """The path of the tcmalloc library, or an empty string."""
    candidates = [Path(folder, name) for name in TCMALLOC for folder in LIBRARY_FOLDERS]
    return next((str(path) for path in candidates if path.exists()), "")


def has_module(name):
    """Whether this Python can import a module of its standard library."""
    try:
        __import__(name)
    except ImportError:
        return False
    return True


def main():
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={"prefix": {"type": "str", "default": ""}}, supports_check_mode=True
    )
    cpuinfo = {}
    for line in read("/proc/cpuinfo").split("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        cpuinfo[key.strip()] = value.strip()
    flags = set(cpuinfo.get("flags", "").split())
    default = "/opt/ftcluster" if os.geteuid() == 0 else "~/.local/share/ftcluster"
    prefix = Path(module.params["prefix"] or default).expanduser().absolute()
    threads, cores, numa_nodes = topology()
    facts = {
        "hostname": socket.gethostname(),
        "machine": platform.machine(),
        "kernel": platform.release(),
        "cpu_model": cpuinfo.get("model name", platform.processor()),
        "cpu_flags": [flag for flag in FLAGS if flag in flags],
        "threads": threads,
        "cores": cores,
        "numa_nodes": numa_nodes,
        "memory_bytes": memory_bytes(),
        "prefix": str(prefix),
        "prefix_writable": writable(prefix),
        "has_stack": (prefix / "current").exists(),
        "free_bytes": free_bytes(prefix),
        "python": platform.python_version(),
        "python_has_venv": has_module("venv") and has_module("ensurepip"),
        "is_root": os.geteuid() == 0,
        "tcmalloc": tcmalloc(),
    }
    module.exit_json(changed=False, facts=facts)


if __name__ == "__main__":
    main()
