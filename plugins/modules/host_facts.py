#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Reads what a host is: CPU, cores, memory, disk, network, system, Python. Changes nothing."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_facts
short_description: What a training cluster needs to know of a host
description:
  - Reads CPU, cores, NUMA nodes, memory, free space, network, system, Python and allocator of a
    host.
  - Limits of the process count - its CPU set and cgroup quota - because ranks run within them.
  - The action plugin of the same name measures the host's clock as well.
  - Changes nothing and needs no privileges.
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
extends_documentation_fragment:
  - ftcluster.cluster.attributes.reads
options:
  prefix:
    description:
      - The folder that the cluster lives in on this host.
      - Left out, C(/opt/ftcluster) where root can be had and C(~/.local/share/ftcluster) elsewhere.
    type: path
    default: ""
  has_root:
    description:
      - Whether root can be had, though this task runs as someone else.
      - The prefix then counts as writable unless its file system is mounted read-only.
    type: bool
    default: false
  address:
    description:
      - The address that other hosts reach this one by; taken as it is.
      - For a local connection, C(127.0.0.1).
    type: str
    default: ""
  inventory_address:
    description:
      - The inventory's address or name of the host, C(ansible_host).
      - Used if one of the host's interfaces has it, and where nothing better is found.
    type: str
    default: ""
  other_hosts:
    description:
      - Addresses or names of other hosts of the cluster.
      - Where nothing else tells the host's own address, it is the one that leads to these.
    type: list
    elements: str
    default: []
  local:
    description: Whether Ansible came here without SSH, so that C(SSH_CONNECTION) is its user's.
    type: bool
    default: false
  rank_user:
    description: The account that trains, whose programs are not told as C(services).
    type: str
    default: ""
  python:
    description:
      - The program of a Python that the stack is to be made from, as a whole path.
      - Where root can be had, root has to own it and all that it imports.
      - Left out, those on the search path.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Read what the host is
  ftcluster.cluster.host_facts:
    inventory_address: "{{ ansible_host | default(inventory_hostname) }}"
  register: host
"""

RETURN = r"""
facts:
  description: What was found; sizes in bytes. Text that was not found is empty.
  returned: always
  type: dict
  contains:
    hostname: {description: Its own name., type: str, sample: node0}
    machine: {description: The architecture., type: str, sample: x86_64}
    kernel: {description: The kernel's release., type: str, sample: 6.1.0-18-amd64}
    os:
      {description: The system's name for people.,
       type: str, sample: Debian GNU/Linux 12 (bookworm)}
    libc: {description: The C library and its version., type: str, sample: glibc 2.36}
    machine_id:
      {description: C(/etc/machine-id)., type: str, sample: 4f7d1c0b2a9e4c55b6f3d8a07e91c2d4}
    cpu_model:
      {description: The CPU's own name., type: str, sample: Intel(R) Xeon(R) Platinum 8488C}
    cpu_flags:
      {description: Those flags of C(/proc/cpuinfo) that matter for training.,
       type: list, elements: str, sample: [avx512_vnni, avx512_bf16, amx_tile, amx_bf16]}
    cpu_generation:
      {description: "The generation of an Intel server CPU, or C(other).",
       type: str, sample: Sapphire Rapids}
    amx:
      description:
        - C(usable), C(absent) without the flag amx_tile, or C(refused) where the CPU has AMX and
          the kernel does not let this process use it.
      type: str
      sample: usable
    threads: {description: Hardware threads this host may use., type: int, sample: 64}
    cores:
      {description: "Physical cores this host may use, within its CPU set and cgroup quota.",
       type: int, sample: 32}
    cpu_quota:
      description:
        - CPUs' worth of time that the cgroup's quota allows, which may be less than one; none
          without a quota.
      type: float
      sample: 48.5
    sockets: {description: CPU packages with at least one usable thread., type: int, sample: 1}
    rank_user_origin:
      description:
        - Who made the account O(rank_user). V(own) is this collection, V(other) somebody else,
          V(directory) what is not in C(/etc/passwd), such as LDAP. Empty where it is not there.
      type: str
      sample: own
    numa_nodes: {description: NUMA nodes with at least one usable core., type: int, sample: 1}
    numa:
      description:
        - The NUMA nodes of which cores or memory may be used. Physical cores of each within the CPU
          set, whatever the cgroup quota; 0 where only the memory may be used, as of flat HBM.
        - C(cpus) has the number of the first usable hardware thread of each core, C(socket_cpus)
          those of all its usable hardware threads, by socket.
        - C(memory_bytes) is 0 where the node has no memory or the host's cpuset forbids it.
        - C(near) is the nearest node with usable cores, of a node without; and the nearest with
          usable memory, of a node with cores and without memory; else none. C(hbm) is whether it
          is high-bandwidth memory.
        - C(distances) are the firmware's, to each node of this list; 10 is the node itself.
      type: list
      elements: dict
      sample:
        - {node: 0, cores: 32, cpus: 0-31, socket_cpus: {"0": 0-63}, memory_bytes: 268435456000,
           near: null, hbm: false, distances: [10, 13]}
        - {node: 1, cores: 0, cpus: "", socket_cpus: {}, memory_bytes: 68719476736, near: 0,
           hbm: true, distances: [13, 10]}
      contains:
        node: {description: The kernel's number of it., type: int}
        cores: {description: Physical cores., type: int}
        cpus: {description: CPU numbers., type: str}
        memory_bytes: {description: Its memory., type: int}
        socket_cpus: {description: CPU numbers by socket., type: dict}
        near: {description: The nearest node that has what it lacks., type: int}
        distances: {description: "How far the nodes are.", type: list, elements: int}
        hbm: {description: Whether it is high-bandwidth memory., type: bool}
    memory_bytes: {description: Memory this host may use., type: int, sample: 268435456000}
    nics:
      description:
        - The network interfaces but loopback, each with its IPv4 and global IPv6 addresses.
        - The speed is none where the driver does not know it and for interfaces without hardware;
          of bonds, bridges and VLANs it is that of the fastest interface below.
      type: list
      elements: dict
      sample:
        - {name: eth0, addresses: [10.0.0.13], speed_mbits: 25000, mtu: 1500, driver: ice}
      contains:
        name: {description: The kernel's name of it., type: str}
        addresses: {description: Its addresses., type: list, elements: str}
        speed_mbits: {description: The link's speed in Mbit/s., type: int}
        mtu: {description: Bytes of its largest packet., type: int}
        driver: {description: The driver of its hardware., type: str}
    rdma:
      description: The RDMA devices of C(/sys/class/infiniband).
      type: list
      elements: dict
      sample:
        - {name: mlx5_0, driver: mlx5_core, iwarp: false, active: true, interfaces: [eth0],
           opens: true}
      contains:
        name: {description: The kernel's name of it., type: str}
        driver: {description: The driver of its hardware., type: str}
        iwarp: {description: "Whether it is iWARP, and not InfiniBand or RoCE.", type: bool}
        active: {description: Whether one of its ports is active., type: bool}
        interfaces:
          {description: "Its network interfaces, and bonds and VLANs over them.",
           type: list, elements: str}
        opens:
          {description: "Whether its files in C(/dev) can be opened, by any account.", type: bool}
    rdma_libraries:
      {description: Those libraries of the host that libfabric's RDMA providers need.,
       type: list, elements: str, sample: [libibverbs.so.1, librdmacm.so.1]}
    locks_memory:
      {description: Whether the user that ran this may lock all memory., type: bool, sample: false}
    network_address:
      {description: The address that other hosts reach it by., type: str, sample: 10.0.0.13}
    network_interface:
      {description: The interface that has this address; empty where none has.,
       type: str, sample: eth0}
    ssh_port:
      {description: "The port that SSH came in at, behind NAT the inner one; 0 without SSH.",
       type: int, sample: 22}
    prefix: {description: The folder that the cluster lives in., type: str, sample: /opt/ftcluster}
    prefix_writable:
      {description: Whether this folder can be made and filled., type: bool, sample: true}
    prefix_refused:
      description:
        - Why root must not install there, or nothing that is installed there could be started, and
          what to do; none where it may.
      type: dict
      sample: null
      contains:
        what: {description: The reason., type: str}
        hint: {description: What to do., type: str}
    has_stack: {description: Whether a stack is there already., type: bool, sample: false}
    current:
      {description: "The folder of the stack that is in use, or an empty string.",
       type: str, sample: native-1b2c3d4e5f60}
    stacks:
      {description: The folders of the stacks that were installed to their end.,
       type: list, elements: str, sample: [native-1b2c3d4e5f60]}
    node_package:
      {description: "The version of ftcluster that the stack in use has, or an empty string.",
       type: str, sample: 0.1.0}
    record:
      description:
        - The text of the cluster's record, which M(ftcluster.cluster.cluster_record) writes on the
          head; empty where there is none.
      type: str
      sample: '{"format": 1, "drained": {}, "all_reduce": {}, "tunings": {}}'
    free_bytes:
      {description: Free space on the file system of the folder., type: int, sample: 80000000000}
    python: {description: Version of the Python that ran this., type: str, sample: 3.11.2}
    pythons:
      description:
        - Version and path of every Python on the search path, the one that ran this first.
        - Only of O(python) where that is given and can be used.
      type: list
      elements: dict
      sample: [{version: 3.11.2, path: /usr/bin/python3}]
      contains:
        version: {description: Its version., type: str}
        path: {description: Its program., type: str}
    python_refused:
      description: Why no stack can be made from O(python), and what to do; none where one can.
      type: dict
      sample: null
      contains:
        what: {description: The reason., type: str}
        hint: {description: What to do., type: str}
    user: {description: The user that ran this., type: str, sample: ops}
    is_root: {description: Whether that was root., type: bool, sample: false}
    tcmalloc:
      {description: Path of the tcmalloc library.,
       type: str, sample: /usr/lib/x86_64-linux-gnu/libtcmalloc.so.4}
    other_clusters:
      description:
        - The clusters in other folders than O(prefix) that root has set up on this host, with the
          account of each, as C(/etc/ftcluster/clusters) has them.
      type: list
      elements: dict
      sample: [{prefix: /srv/other, user: ftcluster}]
      contains:
        prefix: {description: Its folder., type: str}
        user: {description: The account that trains there., type: str}
    firewall_hosts:
      description: The addresses that the host's firewall rules of ftcluster let in.
      type: list
      elements: str
      sample: [10.0.0.11]
    openmp:
      {description: "Path of Intel's OpenMP library, of the stack in use or the host's own.",
       type: str, sample: /opt/ftcluster/current/lib/libiomp5.so}
    local_ports:
      description:
        - The TCP ports that the kernel gives to programs that ask for any, ranges of
          C(net.ipv4.ip_local_port_range) without C(net.ipv4.ip_local_reserved_ports).
      type: list
      elements: str
      sample: [32768-60999]
    services:
      description:
        - At which of these, or of 29500 to 29999, programs of other accounts than O(rank_user)
          listen for other hosts, with the account. The port that SSH came in by is left out.
      type: list
      elements: dict
      sample: [{port: 40000, user: statd}]
      contains:
        port: {description: The port., type: int}
        user: {description: The account., type: str}
    host_firewall:
      {description: "What manages a firewall of the host, C(firewalld) or C(ufw), or nothing.",
       type: str, sample: ufw}
    firewall_rules:
      {description: "Whether the role C(firewall) has written its rules, loaded or not.",
       type: bool, sample: true}
    clock_offset_seconds:
      {description: The host's clock minus the control node's; none where it could not be measured.,
       type: float, sample: -0.004}
    clock_error_seconds:
      {description: "How far off the measurement can be, half of its round trip; none as above.",
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

# what oneDNN chooses its kernels by, names as in /proc/cpuinfo
FLAGS = (
    "avx2", "fma", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16",
    "avx_vnni", "amx_tile", "amx_int8", "amx_bf16", "amx_fp16",
)  # fmt: skip
MINORS = range(8, 16)  # Python 3.8 is the oldest that Ansible runs with on a host
# with the profiler or without it; where the distributions' packages put them
TCMALLOC = ("libtcmalloc.so.4", "libtcmalloc_minimal.so.4")
OPENMP = ("libiomp5.so",)
# what the providers of Intel MPI's libfabric are linked with and the stack does not have
RDMA_LIBRARIES = (
    "libibverbs.so.1", "librdmacm.so.1", "libefa.so.1", "libpsm2.so.2", "libnuma.so.1",
    "libuuid.so.1",
)  # fmt: skip
ACCOUNT_COMMENT = "ftcluster training"  # by which the role account knows its own
FIREWALL_RULES = Path("/etc/ftcluster/firewall.nft")  # which the role firewall writes
CLUSTERS = Path("/etc/ftcluster/clusters")  # which the playbook system writes
OUR_PORTS = "29500-29999"  # where mpirun and the ranks meet
LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/lib64", "/usr/lib", "/usr/local/lib",
)  # fmt: skip


def writable(folder: Path, has_root: bool = False) -> bool:
    """Whether this user, or root if it can be had, could make and fill the folder."""
    there = nearest_existing(folder)
    if not there.is_dir():
        return False
    if not has_root:
        return os.access(there, os.W_OK | os.X_OK)
    top = os.path.realpath(there).split("/")[1]
    return top not in ("proc", "sys") and not os.statvfs(there).f_flag & os.ST_RDONLY


def refusal(folder: Path) -> dict[str, str] | None:
    """Why root must not install in a folder: another user could exchange it there."""
    try:
        with opened_parent(folder, guarded=True):
            return None
    except RefusedPath as error:
        return {"what": f"{error.filename}: {error.what}", "hint": error.hint}
    except OSError:  # it is missing, or this user may not look, and root will
        return None


def noexec(folder: Path) -> dict[str, str] | None:
    """Why programs could not be started from a folder, nor libraries be loaded from it."""
    if not os.statvfs(nearest_existing(folder)).f_flag & os.ST_NOEXEC:
        return None
    return {
        "what": f"{folder} is on a file system that is mounted noexec, so that nothing there runs",
        "hint": "choose another folder with -e ftcluster_prefix=DIR, or mount it without noexec",
    }


def os_name(read_file: Callable[[str], str] = read) -> str:
    """The system's name for people, by /etc/os-release."""
    text = read_file("/etc/os-release") or read_file("/usr/lib/os-release")
    found = re.search("^PRETTY_NAME=(.*)$", text, re.MULTILINE)
    return found[1].strip(" \"'") if found else ""


def cpu_facts(cpuinfo: Mapping[str, str]) -> dict[str, Any]:
    """What the first CPU's fields of /proc/cpuinfo say."""
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
    """The interfaces, and the address that other hosts reach this one by."""
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
    """The ports that ranks may listen at, and those of them that others' programs have."""
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
    """The path of the first library of these names, or an empty string."""
    candidates = [Path(folder, name) for name in names for folder in folders]
    return next((str(path) for path in candidates if exists(path)), "")


def pythons(module: Any) -> list[dict[str, str]]:
    """Version and path of every Python on the search path, the one that runs this first."""
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
    """The Pythons that a stack can be made from, and why not from the one that was given."""
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
    """The name of the folder of the stack in use, or an empty string."""
    try:
        return Path(os.readlink(prefix / "current")).name  # noqa: PTH115 - Path.readlink is of 3.9
    except OSError:
        return ""


def finished_stacks(prefix: Path) -> list[str]:
    """The names of the folders of stacks that were installed to their end."""
    try:
        return sorted(marker.parent.name for marker in prefix.glob("stacks/*/.complete"))
    except OSError:
        return []


def node_package(prefix: Path) -> str:
    """The version of the node package in the stack in use, or an empty string.

    Builds of before formats.py had the number of the coming release, whatever their commit was.
    """
    try:
        found = sorted(
            prefix.glob("current/lib/python3*/site-packages/ftcluster_train-*.dist-info")
        )
    except OSError:  # before Python 3.13, where this user may not look
        return ""
    if not found:
        return ""
    version = found[-1].name[: -len(".dist-info")].partition("-")[2]
    counts = (found[-1].parent / "ftcluster_common/protocol/formats.py").exists()
    return version if counts or "dev" in version else f"{version}.dev0"


def record_text(prefix: Path) -> str:
    """The text of the cluster's record, or a part of it that is too long to be one."""
    try:
        descriptor = os.open(prefix / "cluster.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, encoding="utf-8", errors="replace") as file:
            return file.read(MOST + 2).rstrip("\n")
    except OSError:
        return ""


def origin(name: str, read_file: Callable[[str], str] = read) -> str:
    """Who made an account: "own", "other", "directory" (LDAP and the like); "" if it is missing."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return ""
    if not any(line.startswith(f"{name}:") for line in read_file("/etc/passwd").splitlines()):
        return "directory"
    return "own" if entry.pw_gecos == ACCOUNT_COMMENT else "other"


def host_firewall(read_file: Callable[[str], str], is_active: Callable[[str], bool]) -> str:
    """Which of the usual programs manages a firewall here, or an empty string.

    The unit of ufw is active where ufw itself is disabled, too.

    >>> host_firewall(lambda _: "ENABLED=no", lambda unit: unit == "ufw")
    ''
    """
    if re.search("^ENABLED=yes", read_file("/etc/ufw/ufw.conf"), re.MULTILINE):
        return "ufw"
    return "firewalld" if is_active("firewalld") else ""


def other_clusters(prefix: str, folder: Path = CLUSTERS) -> list[dict[str, str]]:
    """The clusters of a folder with a record of each, but for the one in `prefix`."""
    records = (read(path).split("\n")[0].rpartition(" ") for path in sorted(folder.glob("*")))
    return [{"prefix": r[0], "user": r[2]} for r in records if r[1] and r[0] != prefix]


def firewall_hosts(rules: str) -> list[str]:
    """The addresses in the text of the firewall's rules.

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
            msg=f"{module.params['prefix']}: no such home folder here; give prefix as a whole path"
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
