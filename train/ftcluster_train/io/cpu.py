"""What the kernel says of this host's CPUs. Standard library only."""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

CPU = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Counters:
    """Counters of the kernel since it started.

    Attributes:
        stolen: ticks of all CPUs that the hypervisor gave to others.
        ticks: all ticks.
        throttled: how often a CPU was throttled because of heat.
    """

    stolen: int
    ticks: int
    throttled: int


def megahertz(threads: Iterable[int]) -> int | None:
    """The mean frequency now; None if the kernel does not report it."""
    frequencies = []
    for block in read(Path("/proc/cpuinfo")).split("\n\n"):
        fields = dict(_field(line) for line in block.splitlines() if ":" in line)
        with contextlib.suppress(KeyError, ValueError):
            if int(fields["processor"]) in set(threads):
                frequencies.append(float(fields["cpu MHz"]))
    return round(fmean(frequencies)) if frequencies else None


def counters() -> Counters:
    """The current values; see proc(5)."""
    line = read(Path("/proc/stat")).partition("\n")[0].split()[1:]
    ticks = [int(word) for word in line[:8]]  # guest time is in the first two as well
    counts = CPU.glob("cpu[0-9]*/thermal_throttle/core_throttle_count")
    return Counters(
        stolen=ticks[7] if len(ticks) > 7 else 0,
        ticks=sum(ticks),
        throttled=sum(int(read(path) or 0) for path in counts),
    )


def one_thread_per_core(allowed: Iterable[int]) -> set[int]:
    """The first allowed hardware thread of each physical core."""
    cores: dict[str, int] = {}
    for thread in sorted(allowed):
        siblings = read(CPU / f"cpu{thread}/topology/thread_siblings_list") or str(thread)
        cores.setdefault(siblings, thread)
    return set(cores.values())


def cpuinfo_field(name: str) -> str:
    """A field of /proc/cpuinfo, of the first CPU."""
    lines = read(Path("/proc/cpuinfo")).partition("\n\n")[0].splitlines()
    return dict(_field(line) for line in lines if ":" in line).get(name, "")


def read(path: Path) -> str:
    """A file's text, stripped; "" if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _field(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip(), value.strip()
