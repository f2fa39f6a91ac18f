#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Reads a host's CPU, cores, memory, disk, network, system and Python. Changes nothing."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_facts
short_description: Reads the facts of a host that a training cluster needs
description:
  - Reads CPU, cores, NUMA nodes, memory, free space, network, system, Python and allocator of a
    host.
  - Counts only the CPUs and memory that the CPU set and the cgroup of the process allow, because
    ranks run within the same limits.
  - The action plugin of the same name also measures the host's clock.
  - Changes nothing and needs no privileges.
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
extends_documentation_fragment:
  - ftcluster.cluster.attributes.reads
options:
  prefix:
    description:
      - Folder of the cluster on this host.
      - The default is C(/opt/ftcluster) if root is available, else C(~/.local/share/ftcluster).
    type: path
    default: ""
  has_root:
    description:
      - True if root is available, although this task runs as another user.
      - Then the prefix counts as writable unless its file system is mounted read-only.
    type: bool
    default: false
  address:
    description:
      - The address at which other hosts reach this one; used unchanged.
      - For a local connection, C(127.0.0.1).
    type: str
    default: ""
  inventory_address:
    description:
      - The inventory's address or name of the host, C(ansible_host).
      - Used if one of the host's interfaces has it, or if nothing better is found.
    type: str
    default: ""
  other_hosts:
    description:
      - Addresses or names of other hosts of the cluster.
      - If nothing else determines the host's address, it is the source address of connections to
        these hosts.
    type: list
    elements: str
    default: []
  local:
    description: True if Ansible connects without SSH. Then C(SSH_CONNECTION) describes how
        Ansible's user logged in.
    type: bool
    default: false
  rank_user:
    description: The training account, whose programs are not listed as C(services).
    type: str
    default: ""
  python:
    description:
      - The absolute path of the Python that the stack will be based on.
      - If root is available, this Python and everything that it imports must belong to root.
      - By default, the Pythons on the search path are considered.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Read the host's facts
  ftcluster.cluster.host_facts:
    inventory_address: "{{ ansible_host | default(inventory_hostname) }}"
  register: host
"""

RETURN = r"""
facts:
  description: The facts. Sizes are in bytes, and unknown strings are empty.
  returned: always
  type: dict
  contains:
    hostname: {description: The host's name., type: str, sample: node0}
    machine: {description: The architecture., type: str, sample: x86_64}
    kernel: {description: The kernel's release., type: str, sample: 6.1.0-18-amd64}
    os:
      {description: The system's name and version.,
       type: str, sample: Debian GNU/Linux 12 (bookworm)}
    libc: {description: The C library and its version., type: str, sample: glibc 2.36}
    machine_id:
      {description: C(/etc/machine-id)., type: str, sample: 4f7d1c0b2a9e4c55b6f3d8a07e91c2d4}
    cpu_model:
      {description: The CPU's model name., type: str, sample: Intel(R) Xeon(R) Platinum 8488C}
    cpu_flags:
      {description: Flags in C(/proc/cpuinfo) that matter for training.,
       type: list, elements: str, sample: [avx512_vnni, avx512_bf16, amx_tile, amx_bf16]}
    cpu_generation:
      {description: "The generation of an Intel server CPU, or C(other).",
       type: str, sample: Sapphire Rapids}
    amx:
      description:
        - C(usable), C(absent) without the flag amx_tile, or C(refused) if the CPU has AMX but the
          kernel does not let this process use it.
      type: str
      sample: usable
    threads: {description: Hardware threads this host may use., type: int, sample: 64}
    cores:
      {description: "Physical cores this host may use, within its CPU set and cgroup quota.",
       type: int, sample: 32}
    cpu_quota:
      description:
        - Number of CPUs that the cgroup's quota amounts to, which may be less than one; null
          without a quota.
      type: float
      sample: 48.5
    sockets: {description: CPU packages with at least one usable thread., type: int, sample: 1}
    rank_user_origin:
      description:
        - Origin of the account O(rank_user). V(own) is this collection, V(other) somebody else,
          V(directory) a service such as LDAP. Empty if the account does not exist.
      type: str
      sample: own
    numa_nodes: {description: NUMA nodes with at least one usable core., type: int, sample: 1}
    numa:
      description:
        - The NUMA nodes with usable cores or memory. C(cores) counts physical cores within the CPU
          set, without the cgroup quota. It is 0 if only the memory may be used, as in flat HBM
          mode.
        - C(cpus) lists the first usable hardware thread of each core. C(socket_cpus) lists all
          usable hardware threads of these cores, by socket.
        - C(memory_bytes) is 0 if the node has no memory or the host's cpuset forbids its memory.
        - For a node without usable cores, C(near) is the nearest node with usable cores. For a node
          with cores and without memory, it is the nearest node with usable memory. Otherwise it is
          null. C(hbm) is true for high-bandwidth memory.
        - C(distances) are the firmware's distances to each node of this list; 10 is the node
          itself.
      type: list
      elements: dict
      sample:
        - {node: 0, cores: 32, cpus: 0-31, socket_cpus: {"0": 0-63}, memory_bytes: 268435456000,
           near: null, hbm: false, distances: [10, 13]}
        - {node: 1, cores: 0, cpus: "", socket_cpus: {}, memory_bytes: 68719476736, near: 0,
           hbm: true, distances: [13, 10]}
      contains:
        node: {description: The node's number in the kernel., type: int}
        cores: {description: Physical cores., type: int}
        cpus: {description: CPU numbers., type: str}
        memory_bytes: {description: The node's memory., type: int}
        socket_cpus: {description: CPU numbers by socket., type: dict}
        near: {description: The nearest node with the missing resource., type: int}
        distances: {description: "Distances to the nodes.", type: list, elements: int}
        hbm: {description: True for high-bandwidth memory., type: bool}
    memory_bytes: {description: Memory this host may use., type: int, sample: 268435456000}
    nics:
      description:
        - The network interfaces except loopback, with their IPv4 and global IPv6 addresses.
        - The speed is null if the driver does not know it, or without hardware. For bonds, bridges
          and VLANs, it is the speed of the fastest interface below.
      type: list
      elements: dict
      sample:
        - {name: eth0, addresses: [10.0.0.13], speed_mbits: 25000, mtu: 1500, driver: ice}
      contains:
        name: {description: The interface's name in the kernel., type: str}
        addresses: {description: The interface's addresses., type: list, elements: str}
        speed_mbits: {description: The link's speed in Mbit/s., type: int}
        mtu: {description: Maximum size of a packet in bytes., type: int}
        driver: {description: The hardware's driver., type: str}
    rdma:
      description: The RDMA devices of C(/sys/class/infiniband).
      type: list
      elements: dict
      sample:
        - {name: mlx5_0, driver: mlx5_core, iwarp: false, active: true, interfaces: [eth0],
           opens: true}
      contains:
        name: {description: The device's name in the kernel., type: str}
        driver: {description: The hardware's driver., type: str}
        iwarp: {description: "True for iWARP, false for InfiniBand and RoCE.", type: bool}
        active: {description: True if one of its ports is active., type: bool}
        interfaces:
          {description: "Network interfaces of the device, and bonds and VLANs over them.",
           type: list, elements: str}
        opens:
          {description: "True if any account can open its files in C(/dev).", type: bool}
    rdma_libraries:
      {description: Installed libraries that libfabric's RDMA providers need.,
       type: list, elements: str, sample: [libibverbs.so.1, librdmacm.so.1]}
    locks_memory:
      {description: True if the task's user may lock any amount of memory.,
       type: bool, sample: false}
    network_address:
      {description: The address at which other hosts reach this host., type: str, sample: 10.0.0.13}
    network_interface:
      {description: The interface with this address; empty if none has it.,
       type: str, sample: eth0}
    ssh_port:
      {description: "The host's own port of the SSH connection, even behind NAT; 0 without SSH.",
       type: int, sample: 22}
    prefix: {description: Folder of the cluster., type: str, sample: /opt/ftcluster}
    prefix_writable:
      {description: True if this folder can be created and filled., type: bool, sample: true}
    read_only:
      description:
        - O(prefix) if its file system is mounted read-only. Otherwise the folders in it that
          training writes to and whose file systems are mounted read-only.
      type: list
      elements: str
      sample: []
    prefix_refused:
      description:
        - The reason why root must not install there, or why nothing installed there could be
          executed, and advice; null if there is none.
      type: dict
      sample: null
      contains:
        what: {description: The reason., type: str}
        hint: {description: Advice., type: str}
    has_stack: {description: True if a stack is installed., type: bool, sample: false}
    current:
      {description: "The folder of the stack in use, or an empty string.",
       type: str, sample: native-1b2c3d4e5f60}
    stacks:
      {description: The folders of completely installed stacks.,
       type: list, elements: str, sample: [native-1b2c3d4e5f60]}
    node_package:
      {description: "The version of ftcluster in the stack in use, or an empty string.",
       type: str, sample: 0.1.0}
    record:
      description:
        - The text of the cluster's record, which M(ftcluster.cluster.cluster_record) writes on the
          head; empty if there is none.
      type: str
      sample: '{"format": 1, "drained": {}, "all_reduce": {}, "tunings": {}}'
    free_bytes:
      {description: Free space on the file system of the folder., type: int, sample: 80000000000}
    python: {description: Version of the Python that ran this module., type: str, sample: 3.11.2}
    pythons:
      description:
        - Version and path of every Python on the search path, the current one first.
        - If O(python) is usable, the list contains only this Python.
      type: list
      elements: dict
      sample: [{version: 3.11.2, path: /usr/bin/python3}]
      contains:
        version: {description: The Python's version., type: str}
        path: {description: The Python's program., type: str}
    python_refused:
      description: The reason why O(python) cannot be used, and advice; null if it can.
      type: dict
      sample: null
      contains:
        what: {description: The reason., type: str}
        hint: {description: Advice., type: str}
    user: {description: The task's user., type: str, sample: ops}
    is_root: {description: True if that user is root., type: bool, sample: false}
    tcmalloc:
      {description: Path of the tcmalloc library.,
       type: str, sample: /usr/lib/x86_64-linux-gnu/libtcmalloc.so.4}
    other_clusters:
      description:
        - The clusters in folders other than O(prefix) that root has set up on this host, with their
          accounts, from C(/etc/ftcluster/clusters).
      type: list
      elements: dict
      sample: [{prefix: /srv/other, user: ftcluster}]
      contains:
        prefix: {description: Folder of the cluster., type: str}
        user: {description: The cluster's training account., type: str}
    firewall_hosts:
      description: The addresses that ftcluster's firewall rules on the host accept.
      type: list
      elements: str
      sample: [10.0.0.11]
    openmp:
      {description: "Path of Intel's OpenMP library in the stack in use or on the host.",
       type: str, sample: /opt/ftcluster/current/lib/libiomp5.so}
    local_ports:
      description:
        - The kernel's ephemeral TCP ports, which are C(net.ipv4.ip_local_port_range) without
          C(net.ipv4.ip_local_reserved_ports).
      type: list
      elements: str
      sample: [32768-60999]
    services:
      description:
        - Ports on which programs of accounts other than O(rank_user) accept connections from other
          hosts, with the account. Only C(local_ports) and 29500 to 29999 are checked, without the
          port of the SSH connection.
      type: list
      elements: dict
      sample: [{port: 40000, user: statd}]
      contains:
        port: {description: The port., type: int}
        user: {description: The account., type: str}
    host_firewall:
      {description: "The program that manages a firewall, C(firewalld) or C(ufw), or empty.",
       type: str, sample: ufw}
    firewall_rules:
      {description: "True if the role C(firewall) has written rules, loaded or not.",
       type: bool, sample: true}
    clock_offset_seconds:
      {description: The host's clock minus the control node's; null if it could not be measured.,
       type: float, sample: -0.004}
    clock_error_seconds:
      {description: "Maximum error of the measurement, half of its round trip; null without a
      measurement.",
       type: float, sample: 0.011}
"""

import os
import platform
import pwd
import re
import resource
import shutil
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ftcluster.cluster.plugins.module_utils.cpu import amx_state, generation
from ansible_collections.ftcluster.cluster.plugins.module_utils.given_python import given_python
from ansible_collections.ftcluster.cluster.plugins.module_utils.links import rdma_devices
from ansible_collections.ftcluster.cluster.plugins.module_utils.network import (
    choose_address,
    find_ssh_connection,
    interfaces,
    source_address,
)
from ansible_collections.ftcluster.cluster.plugins.module_utils.number_list import number_list
from ansible_collections.ftcluster.cluster.plugins.module_utils.ports import listeners, local_ports
from ansible_collections.ftcluster.cluster.plugins.module_utils.record import MOST
from ansible_collections.ftcluster.cluster.plugins.module_utils.resources import (
    cpu_quota,
    exists,
    free_bytes,
    is_read_only,
    libc,
    memory_bytes,
    nearest_existing,
    number,
    read,
    topology,
    whole_cores,
)
from ansible_collections.ftcluster.cluster.plugins.module_utils.safe_path import (
    RefusedPath,
    opened_parent,
    user_name,
)

# flags by which oneDNN chooses its kernels, with their names in /proc/cpuinfo
FLAGS = (
    "avx2", "fma", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16",
    "avx_vnni", "amx_tile", "amx_int8", "amx_bf16", "amx_fp16",
)  # fmt: skip
MINORS = range(8, 16)  # Python 3.8 is the oldest version that Ansible supports on hosts
# file names of the tcmalloc library, with and without its profiler
TCMALLOC = ("libtcmalloc.so.4", "libtcmalloc_minimal.so.4")
OPENMP = ("libiomp5.so",)
# libraries that Intel MPI's libfabric providers need and a stack does not contain
RDMA_LIBRARIES = (
    "libibverbs.so.1", "librdmacm.so.1", "libefa.so.1", "libpsm2.so.2", "libnuma.so.1",
    "libuuid.so.1",
)  # fmt: skip
ACCOUNT_COMMENT = "ftcluster training"  # comment of accounts that the role account has created
FIREWALL_RULES = Path("/etc/ftcluster/firewall.nft")  # the role firewall writes this file
CLUSTERS = Path("/etc/ftcluster/clusters")  # the playbook system writes this file
OUR_PORTS = "29500-29999"  # ports on which mpirun and the ranks connect
WRITTEN = ("runs", "cache", "data", "models", "stacks", "layers", "scripts", "metrics")
LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/lib64", "/usr/lib", "/usr/local/lib",
)  # fmt: skip


def writable(folder: Path, has_root: bool = False) -> bool:
    """Return True if this user (or root, if available) could create the folder and write to it."""
    there = nearest_existing(folder)
    if not there.is_dir():
        return False
    if not has_root:
        return os.access(there, os.W_OK | os.X_OK)
    top = os.path.realpath(there).split("/")[1]
    return top not in ("proc", "sys") and not os.statvfs(there).f_flag & os.ST_RDONLY


def read_only(prefix: Path) -> list[str]:
    """Return the prefix if it is mounted read-only, or else the folders in it that are."""
    if is_read_only(prefix):
        return [str(prefix)]
    folders = (prefix / name for name in WRITTEN)
    return [str(folder) for folder in folders if exists(folder) and is_read_only(folder)]


def refusal(folder: Path) -> dict[str, str] | None:
    """Return the reason why root must not install in a folder, or None if root may."""
    try:
        with opened_parent(folder, guarded=True):
            return None
    except RefusedPath as error:
        return {"what": f"{error.filename}: {error.what}", "hint": error.hint}
    except OSError:  # the folder does not exist, or only root may read it
        return None


def noexec(folder: Path) -> dict[str, str] | None:
    """Return the reason why programs in a folder cannot be executed, or None if they can."""
    if not os.statvfs(nearest_existing(folder)).f_flag & os.ST_NOEXEC:
        return None
    return {
        "what": f"{folder} is on a file system that is mounted noexec, so no program there can run",
        "hint": "choose another folder with -e ftcluster_prefix=DIR, or mount it without noexec",
    }


def os_name(read_file: Callable[[str], str] = read) -> str:
    """Return the readable name of the operating system, from /etc/os-release."""
    text = read_file("/etc/os-release") or read_file("/usr/lib/os-release")
    found = re.search("^PRETTY_NAME=(.*)$", text, re.MULTILINE)
    return found[1].strip(" \"'") if found else ""


def cpu_facts(cpuinfo: Mapping[str, str]) -> dict[str, Any]:
    """Return the CPU facts from the first CPU's fields in /proc/cpuinfo."""
    flags = set(cpuinfo.get("flags", "").split())
    vendor = cpuinfo.get("vendor_id", "")
    family, model, stepping = (
        number(cpuinfo.get(field, "")) for field in ("cpu family", "model", "stepping")
    )
    return {
        "cpu_model": cpuinfo.get("model name", platform.processor()),
        "cpu_flags": [flag for flag in FLAGS if flag in flags],
        "cpu_generation": generation(vendor, family, model, stepping, flags),
        "amx": amx_state(flags),
    }


def network_facts(module: Any) -> dict[str, Any]:
    """Return facts of the network: the interfaces, and the address for other hosts."""
    program = module.get_bin_path("ip")
    listing = module.run_command([program, "-json", "address"])[1] if program else ""
    nics = interfaces(listing)
    local = module.params["local"]
    connection = "" if local else find_ssh_connection(os.environ, os.getppid(), read)
    address, interface = choose_address(
        module.params["address"],
        module.params["inventory_address"],
        nics,
        connection,
        source_address(module.params["other_hosts"]),
    )
    return {
        "nics": nics,
        "network_address": address,
        "network_interface": interface,
        **port_facts(connection, module.params["rank_user"]),
    }


def port_facts(ssh_connection: str, rank_user: str) -> dict[str, Any]:
    """Return the ports on which ranks may listen, and the ports that other programs use."""
    given = local_ports(read)
    ours = number_list(",".join([OUR_PORTS, *given]))
    ssh_port = number(ssh_connection.rpartition(" ")[2])
    return {
        "ssh_port": ssh_port,
        "local_ports": given,
        "services": [
            {"port": port, "user": user}
            for port, users in sorted(listeners(read).items())
            if port in ours and port != ssh_port
            for user in [", ".join(sorted(map(user_name, users)))]
            if user != rank_user
        ],
    }


def library(names: Iterable[str], folders: Sequence[str | Path] = LIBRARY_FOLDERS) -> str:
    """Return the path of the first library with one of these names, or ""."""
    candidates = [Path(folder, name) for name in names for folder in folders]
    return next((str(path) for path in candidates if exists(path)), "")


def pythons(module: Any) -> list[dict[str, str]]:
    """Return the version and path of each Python on the search path, the current Python first."""
    found = [{"version": platform.python_version(), "path": sys.executable}]
    program = "import platform, sys; print(platform.python_version(), sys.executable)"
    for minor in MINORS:
        path = shutil.which(f"python3.{minor}")
        if path and minor != sys.version_info[1]:
            code, out = module.run_command([path, "-I", "-B", "-c", program])[:2]
            if code == 0:
                version, executable = out.strip().partition(" ")[::2]
                found.append({"version": version, "path": executable})
    return found


def pythons_for_stacks(
    module: Any, has_root: bool
) -> tuple[list[dict[str, str]], dict[str, str] | None]:
    """Return the Pythons that a stack can use, and the reason if the user's Python is refused."""
    path = module.params["python"]
    if not path:
        return pythons(module), None
    try:
        version = given_python(path, has_root, module.run_command, module.params["rank_user"])
        return [{"version": version, "path": path}], None
    except RefusedPath as error:
        place = "" if error.filename == path else f"{error.filename}: "
        what = f"ftcluster_python={path}: {place}{error.what}"
        return pythons(module), {"what": what, "hint": error.hint}


def current_stack(prefix: Path) -> str:
    """Return the name of the folder of the stack in use, or ""."""
    try:
        return Path(os.readlink(prefix / "current")).name  # noqa: PTH115 - Path.readlink is of 3.9
    except OSError:
        return ""


def finished_stacks(prefix: Path) -> list[str]:
    """Return the folder names of the completely installed stacks."""
    try:
        return sorted(marker.parent.name for marker in prefix.glob("stacks/*/.complete"))
    except OSError:
        return []


def node_package(prefix: Path) -> str:
    """Return the version of the node package in the stack in use, or "".

    A development build without formats.py names the next release; return it with the suffix .dev0.
    """
    try:
        found = sorted(
            prefix.glob("current/lib/python3*/site-packages/ftcluster_train-*.dist-info")
        )
    except OSError:  # before Python 3.13, raised if this user must not read the folder
        return ""
    if not found:
        return ""
    version = found[-1].name[: -len(".dist-info")].partition("-")[2]
    counts = (found[-1].parent / "ftcluster_common/protocol/formats.py").exists()
    return version if counts or "dev" in version else f"{version}.dev0"


def record_text(prefix: Path) -> str:
    """Return the text of the cluster's record, cut off if it is too long for a record."""
    try:
        descriptor = os.open(prefix / "cluster.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, encoding="utf-8", errors="replace") as file:
            return file.read(MOST + 2).rstrip("\n")
    except OSError:
        return ""


def origin(name: str, read_file: Callable[[str], str] = read) -> str:
    """Return an account's origin: own, other, directory (such as LDAP), or "" if it is missing."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return ""
    if not any(line.startswith(f"{name}:") for line in read_file("/etc/passwd").splitlines()):
        return "directory"
    return "own" if entry.pw_gecos == ACCOUNT_COMMENT else "other"


def host_firewall(read_file: Callable[[str], str], is_active: Callable[[str], bool]) -> str:
    """Return the name of the program that manages this host's firewall, or "".

    The systemd unit of ufw is active even if ufw is disabled, so the setting of ufw is read too.

    >>> host_firewall(lambda _: "ENABLED=no", lambda unit: unit == "ufw")
    ''
    """
    if re.search("^ENABLED=yes", read_file("/etc/ufw/ufw.conf"), re.MULTILINE):
        return "ufw"
    return "firewalld" if is_active("firewalld") else ""


def other_clusters(prefix: str, folder: Path = CLUSTERS) -> list[dict[str, str]]:
    """Return the clusters that have a record in a folder, except the cluster in `prefix`."""
    records = (read(path).split("\n")[0].rpartition(" ") for path in sorted(folder.glob("*")))
    return [{"prefix": r[0], "user": r[2]} for r in records if r[1] and r[0] != prefix]


def firewall_hosts(rules: str) -> list[str]:
    """Return the addresses in the text of the firewall's rules.

    >>> firewall_hosts("set hosts4 {\\n type ipv4_addr\\n elements = { 10.0.0.1, 10.0.0.2 }\\n}")
    ['10.0.0.1', '10.0.0.2']
    """
    found = re.findall(r"set hosts[46] \{[^{}]*elements = \{([^{}]*)\}", rules)
    return [address.strip() for text in found for address in text.split(",")]


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "prefix": {"type": "path", "default": ""},
            "has_root": {"type": "bool", "default": False},
            "address": {"type": "str", "default": ""},
            "inventory_address": {"type": "str", "default": ""},
            "other_hosts": {"type": "list", "elements": "str", "default": []},
            "local": {"type": "bool", "default": False},
            "rank_user": {"type": "str", "default": ""},
            "python": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    cpuinfo = {}
    for line in read("/proc/cpuinfo").split("\n\n")[0].splitlines():
        key, value = line.partition(":")[::2]
        cpuinfo[key.strip()] = value.strip()
    has_root = module.params["has_root"] or os.geteuid() == 0
    default = Path("/opt") if has_root else Path.home() / ".local/share"
    prefix = Path(module.params["prefix"] or default / "ftcluster").absolute()
    if module.params["prefix"].startswith("~"):
        module.fail_json(
            msg=f"{module.params['prefix']}: no such home folder here; give an absolute path"
        )
    allowed, memory = os.sched_getaffinity(0), memory_bytes()
    sockets, cores, numa = topology(allowed, memory, cpuinfo.get("model name", ""))
    quota = cpu_quota()
    if quota is not None:
        cores = min(cores, whole_cores(quota))
    available, python_refused = pythons_for_stacks(module, has_root)
    systemctl = module.get_bin_path("systemctl")

    def is_active(unit: str) -> bool:
        return bool(systemctl) and module.run_command([systemctl, "-q", "is-active", unit])[0] == 0

    facts = {
        "hostname": socket.gethostname(),
        "machine": platform.machine(),
        "kernel": platform.release(),
        "os": os_name(),
        "libc": libc(),
        "machine_id": read("/etc/machine-id").strip(),
        "threads": len(allowed),
        "cores": cores,
        "cpu_quota": quota,
        "sockets": sockets,
        "numa_nodes": min(sum(node["cores"] > 0 for node in numa), cores),
        "numa": numa,
        "memory_bytes": memory,
        "prefix": str(prefix),
        "prefix_writable": writable(prefix, has_root),
        "read_only": read_only(prefix),
        "prefix_refused": (refusal(prefix / "stacks") if has_root else None) or noexec(prefix),
        "has_stack": exists(prefix / "current"),
        "current": current_stack(prefix),
        "stacks": finished_stacks(prefix),
        "node_package": node_package(prefix),
        "record": record_text(prefix),
        "free_bytes": free_bytes(prefix),
        "python": platform.python_version(),
        "pythons": available,
        "python_refused": python_refused,
        "user": user_name(os.geteuid()),
        "rank_user_origin": origin(module.params["rank_user"]),
        "is_root": os.geteuid() == 0,
        "rdma": rdma_devices(),
        "rdma_libraries": [name for name in RDMA_LIBRARIES if library((name,))],
        "locks_memory": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == resource.RLIM_INFINITY,
        "tcmalloc": library(TCMALLOC),
        "host_firewall": host_firewall(read, is_active),
        "firewall_rules": exists(FIREWALL_RULES),
        "other_clusters": other_clusters(str(prefix)),
        "firewall_hosts": firewall_hosts(read(str(FIREWALL_RULES))),
        "openmp": library(OPENMP, (prefix / "current" / "lib", *LIBRARY_FOLDERS)),
    }
    module.exit_json(changed=False, facts={**facts, **cpu_facts(cpuinfo), **network_facts(module)})


if __name__ == "__main__":
    main()
