"""One host: its disk, its power button, its serial console.

A host is a systemd-nspawn container that boots its own systemd and sshd. Its disk is an overlay
over the cached root file system; it survives a power-off.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from . import network, registries
from .cgroups import JOIN, Group, legacy
from .settings import OPERATOR, OPERATOR_ID, OVERLAY, OVERLAYS, SWITCH, Node, Settings
from .shell import TestbedError, run, start

MEMORY_V1 = "/sys/fs/cgroup/memory"
CONSOLE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NSPAWN_STATE = Path("/run/systemd/nspawn")

# The power button, a shell program: run the remaining arguments in the host's cgroups ($3), and
# again when the host reboots (nspawn ends with 133). When the host is off, its cable is off too.
POWER = f"""switch=$1 cable=$2 groups=$3; shift 3
while sh -c '{JOIN}' sh "$groups" "$@"; [ $? -eq 133 ]; do :; done
ip -n "$switch" link set "$cable" down"""


def is_on(node: Node) -> bool:
    return Group(node.name).alive()


# ---------------------------------------------------------------- power
def boot(node: Node, settings: Settings, authorized_key: Path) -> None:
    """Power on a host and return before it responds; `authorized_key` lets the operator log in."""
    everyone = settings.all_nodes()
    if is_on(node):
        add_names(node, everyone)
        return
    power_off(node)  # remains of an interrupted boot, or of a poweroff inside the host
    mount_disk(node, (*settings.layers, settings.base.resolve()))
    if not node.host_key.exists():
        personalize(node, authorized_key)
    add_names(node, everyone)
    network.plug_in(node)
    log = node.folder / "console.log"
    # nspawn puts the host into its caller's cgroup, so the power button needs a separate cgroup.
    button, host = Group(f"{node.name}-power"), Group(node.name)
    button.make()
    host.make()
    power = ["setsid", "--fork", "sh", "-c", POWER, "sh", SWITCH, node.name, host.procs_files()]
    start(button.join_argv([*power, *nspawn_argv(node, settings.bind_ro, settings.shared)]), log)


def nspawn_argv(node: Node, read_only: Iterable[str], shared: Iterable[str]) -> list[str]:
    return [
        "env",
        "SYSTEMD_NSPAWN_API_VFS_WRITABLE=network",  # hosts may set net.*, but not vm.* or kernel.*
        "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1",  # cgroup v2, even if this machine uses v1
        "systemd-nspawn",
        "--quiet",
        "--boot",
        f"--directory={node.root}",
        f"--machine={node.netns}",
        f"--hostname={node.name}",
        "--register=no",
        "--keep-unit",
        f"--network-namespace-path=/run/netns/{node.netns}",
        "--resolv-conf=off",
        "--timezone=off",
        "--link-journal=no",
        "--console=pipe",
        # no SYS_TIME, because all hosts share one clock
        "--capability=CAP_NET_ADMIN,CAP_IPC_LOCK,CAP_PERFMON",
        "--system-call-filter=perf_event_open keyctl add_key request_key",
        *(f"--bind-ro={path}" for path in read_only),
        *(f"--bind={path}" for path in shared),
    ]


def power_off(node: Node) -> None:
    """Cut the power: first the cable, so that no FIN or RST reaches the peers."""
    network.link_down(node)
    for name in (f"{node.name}-power", node.name):
        Group(name).kill()
    network.unplug(node)
    if str(node.root) in mounted_disks():
        unmount(node.root)


# ---------------------------------------------------------------- disk
def mount_disk(node: Node, below: Iterable[str | Path]) -> None:
    """Mount the host's own layer above the others; the lowest layer must never change."""
    for sub in ("upper", "work", "root"):
        (node.folder / sub).mkdir(parents=True, exist_ok=True)
    upper, work = node.folder / "upper", node.folder / "work"
    layers = f"lowerdir={':'.join(map(str, below))},upperdir={upper},workdir={work}"
    run("mount", "-t", "overlay", OVERLAY, "-o", layers, node.root)


def erase_disk(node: Node) -> None:
    """Remove everything that was written on the disk of a host that is off."""
    for sub in ("upper", "work"):
        shutil.rmtree(node.folder / sub)


def personalize(node: Node, authorized_key: Path) -> None:
    """Write a host's own files to a new disk; the host key is last and marks completion."""
    etc = node.root / "etc"
    (etc / "hostname").write_text(f"{node.name}\n")
    (etc / "hosts").write_text("127.0.0.1 localhost\n")
    (etc / "resolv.conf").unlink(missing_ok=True)
    shutil.copy(registries.resolv_conf(), etc / "resolv.conf")
    ssh = node.root / "home" / OPERATOR / ".ssh"
    ssh.mkdir(mode=0o700, exist_ok=True)
    shutil.copy(authorized_key, ssh / "authorized_keys")
    for path in (ssh, ssh / "authorized_keys"):
        os.chown(path, OPERATOR_ID, OPERATOR_ID)
    key = etc / "ssh/ssh_host_ed25519_key"
    key.unlink(missing_ok=True)
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"root@{node.name}", "-f", key)


def add_names(node: Node, names: Iterable[Node]) -> None:
    """Add missing names to /etc/hosts, because a testbed can grow."""
    hosts = node.root / "etc/hosts"
    known = hosts.read_text()
    lines = [f"{other.address} {other.name}\n" for other in names]
    if missing := [line for line in lines if line not in known]:
        with hosts.open("a") as out:
            out.writelines(missing)


def mounted_disks() -> list[str]:
    """Return the mount points of the testbeds' overlays, whoever mounted them."""
    return [where for source, where in _overlays() if source == OVERLAY]


def other_disks() -> list[str]:
    """Return the mount points of testbeds with other names."""
    return [where for source, where in _overlays() if source != OVERLAY]


def _overlays() -> list[tuple[str, str]]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    mounts = [(source, where) for source, where, *_ in map(str.split, lines)]
    return [(source, where) for source, where in mounts if source.startswith(OVERLAYS)]


def unmount(root: Path) -> None:
    at = root.stat()
    run("umount", root)
    # nspawn does not remove its locks
    lock = NSPAWN_STATE / "locks" / f"inode-{at.st_dev}:{at.st_ino}"
    lock.unlink(missing_ok=True)


def remove_traces(node: Node) -> None:
    """Remove files that nspawn does not remove itself."""
    for kind in ("propagate", "unix-export"):
        shutil.rmtree(NSPAWN_STATE / kind / node.netns, ignore_errors=True)


# ---------------------------------------------------------------- memory
def limit_memory(node: Node, size: int | None) -> None:
    """Limit the memory in bytes where programs in containers read it; None: no limit."""
    Group(node.name).limit_memory(size)
    if "memory" in legacy():  # hosts see only v2, which does not have this limit
        mounted = f"mountpoint -q {MEMORY_V1}"
        mount = f"mkdir -p {MEMORY_V1} && mount -t cgroup -o memory none {MEMORY_V1}"
        run(*console_argv(node, ["sh", "-c", f"{mounted} || {{ {mount}; }}"]))


# ---------------------------------------------------------------- console
def console_argv(node: Node, cmd: list[str]) -> list[str]:
    """Return `cmd` as root inside the host, not through its network, so the cable may be cut."""
    pid = init_pid(node)
    if pid is None:
        raise TestbedError(f"{node.name} is off")
    clean = ["HOME=/root", f"TERM={os.environ.get('TERM', 'dumb')}", "LANG=C.UTF-8"]
    namespaces = ["-m", "-u", "-i", "-n", "-p", "-C"]
    enter = ["nsenter", "-t", pid, *namespaces, "env", "-i", *clean, f"PATH={CONSOLE_PATH}"]
    return Group(node.name).join_argv([*enter, *cmd], subgroup="console")


def init_pid(node: Node) -> str | None:
    """Return the id on this machine of the host's process 1."""
    payload = Group(node.name).path / "payload"
    for procs in (payload / "init.scope/cgroup.procs", payload / "cgroup.procs"):
        for pid in procs.read_text().split() if procs.exists() else []:
            with contextlib.suppress(OSError):
                if re.search(r"^NSpid:.*\s1$", Path(f"/proc/{pid}/status").read_text(), re.M):
                    return pid
    return None
