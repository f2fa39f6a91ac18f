"""Finds hosts that stop answering while their ranks are running, as after a power failure.

mpirun waits forever for such a host: the ssh process that it started for the host exits with 255
(ServerAliveInterval of the mesh's configuration), but mpirun does not check (seen with Intel MPI
2021.18). So the supervisor does. Standard library only.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ftcluster_common.launch import Host
from ftcluster_train.launcher.ssh_check import SSH_FAILED

CHECK_SECONDS = 1.0
START_SECONDS = 60.0  # mpirun has started every ssh by then


class Connections:
    """The ssh process that mpirun has started for each host.

    Args:
        hosts: all but the head.
        processes: the process ids of the run on this host.
        clock: seconds.
        proc: where procfs is mounted.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        processes: Callable[[], Iterable[int]],
        clock: Callable[[], float] = time.monotonic,
        proc: Path = Path("/proc"),
    ) -> None:
        self._unknown = {host.address: host for host in hosts}
        self._known: dict[int, Host] = {}
        self._failed: set[int] = set()
        self._processes = processes
        self._clock = clock
        self._proc = proc
        self._began = self._checked = clock()

    def lost(self) -> list[Host]:
        """Hosts whose ssh has failed and is still a zombie at the next check."""
        now = self._clock()
        if now - self._checked < CHECK_SECONDS:
            return []
        self._checked = now
        if self._unknown and now - self._began < START_SECONDS:
            self._find_processes()
        before = self._failed
        self._failed = {pid for pid in self._known if self._has_failed(pid)}
        return [self._known[pid] for pid in sorted(self._failed & before)]

    def _find_processes(self) -> None:
        for pid in self._processes():
            try:
                words = (self._proc / str(pid) / "cmdline").read_text(errors="replace").split("\0")
            except OSError:
                continue  # it has ended
            if Path(words[0]).name == "ssh":
                for address in self._unknown.keys() & set(words):
                    self._known[pid] = self._unknown.pop(address)

    def _has_failed(self, pid: int) -> bool:
        """Whether ssh has failed, and mpirun has not read its exit code."""
        try:
            stat = (self._proc / str(pid) / "stat").read_text(errors="replace")
        except OSError:
            return False  # mpirun has read it
        fields = stat.rpartition(")")[2].split()
        return fields[0] == "Z" and int(fields[-1]) >> 8 == SSH_FAILED  # proc(5), exit_code


def as_error(host: Host) -> dict[str, Any]:
    """The fields of an event `error` about a lost host."""
    return {
        "message": f"{host.name} ({host.address}) was lost: it does not answer the head any more",
        "hint": "check its power and network, and run ftcluster check. If only the network is "
        "down, processes of the run may still be running there",
        "host": host.name,
        "rank": None,
    }
