"""Hosts that the head has lost while their ranks were at work, as when their power is gone.

mpirun waits for ever for a host that falls silent: the ssh that it has started for the host gives
up and ends with 255 (ServerAliveInterval of the mesh's configuration), but mpirun does not look
(seen with Intel MPI 2021.18). So the supervisor does.

Standard library only: the supervisor uses it.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ftcluster_train.launcher.ssh_check import SSH_FAILED, Host

LOOK_SECONDS = 1.0
LEARN_SECONDS = 60.0  # mpirun has started every ssh by then


class Connections:
    """The ssh of each host that mpirun has started.

    Args:
        hosts: all but the head.
        processes: the process ids of the run on this host.
        clock: seconds.
        proc: where Linux shows processes.
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
        self._began = self._looked = clock()

    def lost(self) -> list[Host]:
        """Hosts whose ssh has failed and was still there, unheeded, at the next look."""
        now = self._clock()
        if now - self._looked < LOOK_SECONDS:
            return []
        self._looked = now
        if self._unknown and now - self._began < LEARN_SECONDS:
            self._learn()
        before = self._failed
        self._failed = {pid for pid in self._known if self._has_failed(pid)}
        return [self._known[pid] for pid in sorted(self._failed & before)]

    def _learn(self) -> None:
        for pid in self._processes():
            try:
                words = (self._proc / str(pid) / "cmdline").read_text(errors="replace").split("\0")
            except OSError:
                continue  # it ended meanwhile
            if Path(words[0]).name == "ssh":
                for address in self._unknown.keys() & set(words):
                    self._known[pid] = self._unknown.pop(address)

    def _has_failed(self, pid: int) -> bool:
        """Whether it has ended with ssh's own exit code, and nobody has asked for that."""
        try:
            stat = (self._proc / str(pid) / "stat").read_text(errors="replace")
        except OSError:
            return False  # mpirun has seen its end
        fields = stat.rpartition(")")[2].split()
        return fields[0] == "Z" and int(fields[-1]) >> 8 == SSH_FAILED  # proc(5), exit_code


def as_error(host: Host) -> dict[str, Any]:
    """The fields of an event `error` about a lost host."""
    return {
        "message": f"{host.name} ({host.address}) was lost: it does not answer the head any more",
        "hint": "see that it is on and that the head reaches it; ftcluster check tells. Processes "
        "of the run may still be at work there if only the network is gone",
        "host": host.name,
        "rank": None,
    }
