"""CPUs and memory of this host, as reported by the kernel. Standard library only."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

CPU = Path("/sys/devices/system/cpu")
CGROUPS = Path("/sys/fs/cgroup")
# names of the files with limit and usage, and the field of memory.stat with reclaimable memory, for
# cgroup versions 2 and 1
FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


@dataclass(frozen=True)
class Counters:
    """Counters of the kernel since boot.

    Attributes:
        stolen: clock ticks that the hypervisor gave to other virtual machines, over all CPUs.
        ticks: clock ticks of all CPUs together.
        throttled: number of times a CPU was throttled because of heat.
    """

    stolen: int
    ticks: int
    throttled: int


def megahertz(threads: Iterable[int]) -> int | None:
    """Return the current mean frequency of CPUs in MHz; None if the kernel does not report it."""
    frequencies = []
    for block in read(Path("/proc/cpuinfo")).split("\n\n"):
        fields = dict(_field(line) for line in block.splitlines() if ":" in line)
        with contextlib.suppress(KeyError, ValueError):
            if int(fields["processor"]) in set(threads):
                frequencies.append(float(fields["cpu MHz"]))
    return round(fmean(frequencies)) if frequencies else None


def counters() -> Counters:
    """Return the current counters; see proc(5)."""
    line = read(Path("/proc/stat")).partition("\n")[0].split()[1:]
    ticks = [int(word) for word in line[:8]]  # the first two include guest time
    counts = CPU.glob("cpu[0-9]*/thermal_throttle/core_throttle_count")
    return Counters(
        stolen=ticks[7] if len(ticks) > 7 else 0,
        ticks=sum(ticks),
        throttled=sum(int(read(path) or 0) for path in counts),
    )


def one_thread_per_core(allowed: Iterable[int]) -> set[int]:
    """Return the first allowed hardware thread of each physical core."""
    cores: dict[str, int] = {}
    for thread in sorted(allowed):
        siblings = read(CPU / f"cpu{thread}/topology/thread_siblings_list") or str(thread)
        cores.setdefault(siblings, thread)
    return set(cores.values())


def read(path: Path) -> str:
    """Return a file's text, stripped; "" if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _field(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip(), value.strip()


Read = Callable[[Path], str]


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="ascii")
    return ""


def free_memory(read: Read = _read) -> int:
    """Return the bytes that can be allocated without swapping and within the cgroups' limits."""
    meminfo = _fields(read(Path("/proc/meminfo")))
    kilobytes = meminfo.get("MemAvailable:")
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([free if kilobytes is None else kilobytes * 1024, *_of_cgroups(read)])


def cpu_quota(read: Read = _read) -> float | None:
    """Return the number of CPUs that this process's cgroups allow; None if there is no quota."""
    limits = []
    for folder in _cgroups("cpu", read):
        quota, _, period = read(folder / "cpu.max").strip().partition(" ")
        if not quota:  # version 1
            quota = read(folder / "cpu.cfs_quota_us").strip()
            period = read(folder / "cpu.cfs_period_us").strip()
        if quota.isdigit():
            limits.append(int(quota) / int(period or 100000))
    return min(limits, default=None)


def _of_cgroups(read: Read) -> Iterator[int]:
    """Yield the free memory in each of this process's cgroups, from the innermost to the root."""
    for folder in _cgroups("memory", read):
        for limit, usage, reclaimable in FILES:
            most, used = read(folder / limit).strip(), read(folder / usage).strip()
            if most.isdigit() and used.isdigit():
                stat = _fields(read(folder / "memory.stat"))
                yield int(most) - int(used) + stat.get(reclaimable, 0)


def _cgroups(controller: str, read: Read) -> Iterator[Path]:
    """Yield the folders of this process's cgroups, for versions 1 and 2.

    For version 1, only the cgroups of one controller are included.
    """
    for line in read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = CGROUPS / controller if controllers else CGROUPS
        cgroup = mount / path.lstrip("/")
        yield from (folder for folder in (cgroup, *cgroup.parents) if folder.is_relative_to(mount))


def _fields(text: str) -> dict[str, int]:
    """Return the number on each line by the name before it; lines without a number are skipped."""
    rows = [line.split() for line in text.splitlines()]
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}
