"""Processes, mounts and locks of runs on this machine and the testbed's hosts, read as root."""

import contextlib
import fcntl
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ftcluster_common.protocol.launch import CLUSTER_PORTS
from tests.testbed.settings import GROUP

LISTENS = "0A"  # state of a listening socket in /proc/net/tcp
HOST = re.compile(rf"/{GROUP}/(node\d+)/")
KINDS = {  # kinds of processes, by the first word of the command line that is a key
    "mpirun": "mpirun",
    "ftcluster_train.host.supervisor": "supervisor",
    "ftcluster_train.host.bind": "guardian",
    "ftcluster_train.engine.rank": "rank",
    "mpiexec.hydra": "mpirun",
    "hydra_pmi_proxy": "proxy",
    "hydra_bstrap_proxy": "proxy",
}


@dataclass(frozen=True)
class Process:
    """A process of a run.

    Attributes:
        host: name of the testbed's host that it is on, or "localhost".
        kind: supervisor, mpirun, proxy, guardian, rank or other.
        restart: number of restarts before; None if it belongs to no attempt.
        rank: the rank of the process or of its guardian.
    """

    pid: int
    parent: int
    host: str
    kind: str
    restart: int | None
    rank: int | None
    words: str

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, which may have ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def __str__(self) -> str:
        return f"{self.host}: {self.kind} {self.pid}: {self.words[:80]}"


def processes_of(run: str) -> list[Process]:
    """Return a run's processes without zombies, by the id in environment or arguments."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            found += list(_process(folder, run))
    return found


def _process(folder: Path, run: str) -> Iterator[Process]:
    words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
    variables = dict(
        pair.split("=", 1)
        for pair in (folder / "environ").read_bytes().decode(errors="replace").split("\0")
        if "=" in pair
    )
    supervises = "ftcluster_train.host.supervisor" in words and any(w.endswith(run) for w in words)
    if variables.get("FTCLUSTER_RUN") != run and not supervises:
        return
    stat = (folder / "stat").read_text().rpartition(")")[2].split()
    if stat[0] == "Z":
        return
    kind = next((KINDS[w] for w in (Path(word).name for word in words) if w in KINDS), "other")
    rank = variables.get("PMI_RANK")
    restart = variables.get("FTCLUSTER_RESTART")
    place = HOST.search((folder / "cgroup").read_text())
    yield Process(
        pid=int(folder.name),
        parent=int(stat[1]),
        host=place[1] if place else "localhost",
        kind=kind,
        restart=None if restart is None else int(restart),
        rank=None if rank is None else int(rank),
        words=" ".join(words).strip(),
    )


def sshd_above(pid: int) -> int | None:
    """Return the process of the SSH session that started a process; None if there is none.

    When a session is killed, its processes continue as children of the host's process 1.
    """
    while pid:
        if Path(f"/proc/{pid}/comm").read_text().startswith("sshd"):
            return pid
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return None


def mounts(init: int) -> set[str]:
    """Return the mount points that process `init` sees."""
    lines = Path(f"/proc/{init}/mounts").read_text().splitlines()
    return {line.split()[1] for line in lines}


def cluster_ports(init: int) -> set[int]:
    """Return the cluster's ports with listeners in the network of process `init`."""
    found = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{init}/net/{name}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == LISTENS:
                found.add(int(words[1].rpartition(":")[2], 16))
    return found & set(CLUSTER_PORTS)


def is_locked(path: Path) -> bool:
    """Return True if any process holds a lock (flock) on a file or folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def oom_kill(process: Process) -> Path:
    """Limit a process's memory so that the kernel kills it at its next page.

    Returns:
        Its memory cgroup, to be removed when it has ended.
    """
    legacy = Path("/sys/fs/cgroup/memory")
    top = legacy if legacy.is_dir() else Path("/sys/fs/cgroup")
    group = top / f"ftcluster-faults-{process.pid}"
    group.mkdir()
    limit = "memory.limit_in_bytes" if legacy.is_dir() else "memory.max"
    (group / limit).write_text(str(1 << 20))
    (group / "cgroup.procs").write_text(str(process.pid))
    return group
