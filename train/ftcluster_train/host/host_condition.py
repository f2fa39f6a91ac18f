"""What may slow a host down while it trains: clock, heat, hypervisor, swap, other programs.

Standard library only: a rank's guardian reads it.
"""

import contextlib
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ftcluster_train.host.activity import descendants
from ftcluster_train.io.cpu import counters, megahertz

LEAST_CORES = 0.1  # of a program that is worth naming
NAMED = 3  # programs
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class HostCondition:
    """Compares this host with what it was at the reading before.

    Args:
        parent: a process that all of the run's ranks on this host descend from.
        now: seconds.
    """

    def __init__(self, parent: int, now: float) -> None:
        self._parent, self._since = parent, now
        self._counters, self._swapped = counters(), _swapped_pages()
        self._programs = self._others()

    def read(self, now: float) -> dict[str, Any]:
        """What has happened since the reading before.

        Returns:
            mhz: of the cores of this process, now; None where the kernel does not say.
            throttled: how often a CPU was throttled because of heat.
            stolen: share of all CPU time that the hypervisor gave to others.
            swap: bytes a second that were read from swap.
            programs: name, process id and cores used of those that are not the run's, the largest
                first.
        """
        seconds = max(now - self._since, 1e-3)
        after, swapped, programs = counters(), _swapped_pages(), self._others()
        used = [
            (name, pid, (ticks - before) / TICKS / seconds)
            for (pid, name), ticks in programs.items()
            if (before := self._programs.get((pid, name), 0)) < ticks
        ]
        used.sort(key=lambda one: -one[2])
        condition = {
            "mhz": megahertz(os.sched_getaffinity(0)),
            "throttled": after.throttled - self._counters.throttled,
            "stolen": round(
                (after.stolen - self._counters.stolen) / max(1, after.ticks - self._counters.ticks),
                3,
            ),
            "swap": round((swapped - self._swapped) * PAGE / seconds),
            "programs": [
                [name, pid, round(cores, 1)]
                for name, pid, cores in used[:NAMED]
                if cores >= LEAST_CORES
            ],
        }
        self._since, self._counters, self._swapped = now, after, swapped
        self._programs = programs
        return condition

    def _others(self) -> dict[tuple[int, str], int]:
        """Ticks of CPU time of each process that is not the run's, by id and name."""
        return cpu_ticks({self._parent, *descendants(self._parent)})


def cpu_ticks(without: Collection[int]) -> dict[tuple[int, str], int]:
    """Ticks of CPU time of each process that can be seen, by id and name."""
    ticks = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) not in without:
            with contextlib.suppress(OSError):  # it has ended
                text = (folder / "stat").read_text(errors="replace")
                name, _, rest = text.partition("(")[2].rpartition(")")
                fields = rest.split()
                ticks[int(folder.name), name] = int(fields[11]) + int(fields[12])  # utime, stime
    return ticks


def _swapped_pages() -> int:
    """Pages that were read from swap since the host was started."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("pswpin "):
                return int(line.split()[1])
    return 0
