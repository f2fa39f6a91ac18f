"""How much memory this host can still give."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
# limit, usage, and in memory.stat what of it the kernel frees first, of both versions
FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)

Read = Callable[[Path], str]


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="ascii")
    return ""


def free_memory(read: Read = _read) -> int:
    """Bytes that can be taken without swapping, or less where a cgroup limits them."""
    meminfo = _fields(read(Path("/proc/meminfo")))
    kilobytes = meminfo.get("MemAvailable:")
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([free if kilobytes is None else kilobytes * 1024, *_of_cgroups(read)])


def _of_cgroups(read: Read) -> Iterator[int]:
    """What is left of the limits of this process's cgroups, from its own up to the root."""
    for line in read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mount = CGROUPS / "memory" if controllers else CGROUPS
        cgroup = mount / path.lstrip("/")
        for folder in (cgroup, *cgroup.parents):
            for limit, usage, reclaimable in FILES if folder.is_relative_to(mount) else ():
                most, used = read(folder / limit).strip(), read(folder / usage).strip()
                if most.isdigit() and used.isdigit():
                    stat = _fields(read(folder / "memory.stat"))
                    yield int(most) - int(used) + stat.get(reclaimable, 0)


def _fields(text: str) -> dict[str, int]:
    """Lines of a name and a number."""
    words = [line.split() for line in text.splitlines()]
    return {line[0]: int(line[1]) for line in words if len(line) > 1 and line[1].isdigit()}
