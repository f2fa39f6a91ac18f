"""Control groups of hosts: they contain a host's processes, kill it at once, and limit its CPU.

Each host has a folder in the unified hierarchy (cgroup v2) and, on a machine that still has it, in
the v1 hierarchies `cpu`, `memory` and `systemd`. Its power button, `NODE-power`, has the same.
"""

from __future__ import annotations

import functools
import time
from pathlib import Path

from .settings import GROUP
from .shell import TestbedError

PERIOD = 100_000  # period of a CPU quota in microseconds

# A shell program: join the cgroups listed in $1, then execute the remaining arguments.
JOIN = 'for f in $1; do echo $$ > "$f" || exit 1; done; shift; exec "$@"'


@functools.cache
def unified() -> Path:
    """Return the mount point of cgroup v2."""
    for where, kind, _ in _mounts():
        if kind == "cgroup2":
            return where
    raise TestbedError("no cgroup2 mount: mount -t cgroup2 none /sys/fs/cgroup/unified")


@functools.cache
def legacy() -> dict[str, Path]:
    """Return the v1 hierarchies used here, by controller; empty on a machine that has only v2."""
    return {
        option: where
        for where, kind, options in _mounts()
        if kind == "cgroup"
        for option in options.split(",")
        if option in ("cpu", "memory", "name=systemd")
    }


def _mounts() -> list[tuple[Path, str, str]]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [(Path(where), kind, opts) for _, where, kind, opts, *_ in map(str.split, lines)]


def _hierarchies() -> set[Path]:
    return {unified(), *legacy().values()}


class Group:
    """The cgroups of one host, or of its power button."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def path(self) -> Path:
        return unified() / GROUP / self.name

    @property
    def _folders(self) -> list[Path]:
        return [hierarchy / GROUP / self.name for hierarchy in _hierarchies()]

    def make(self) -> None:
        for folder in self._folders:
            folder.mkdir(parents=True, exist_ok=True)
        of_v2 = (unified() / "cgroup.controllers").read_text().split()
        wanted = " ".join(f"+{name}" for name in ("cpu", "memory") if name in of_v2)
        for folder in (unified(), unified() / GROUP):
            (folder / "cgroup.subtree_control").write_text(wanted)

    def alive(self) -> bool:
        events = self.path / "cgroup.events"
        return events.exists() and "populated 1" in events.read_text()

    def procs_files(self, subgroup: str = "") -> str:
        """The files that a process joins by writing its number to them.

        With `subgroup`, one inside the v2 group: no process may sit beside a populated subgroup.
        """
        inside = self.path / subgroup
        inside.mkdir(parents=True, exist_ok=True)
        folders = [inside, *(folder for folder in self._folders if folder != self.path)]
        return " ".join(str(folder / "cgroup.procs") for folder in folders)

    def join_argv(self, cmd: list[str], subgroup: str = "") -> list[str]:
        """Return `cmd` as a command that runs inside these cgroups."""
        return ["sh", "-c", JOIN, "sh", self.procs_files(subgroup), *cmd]

    def kill(self) -> None:
        """Kill every process in the group and remove the group.

        cgroup.kill, because a host's processes outlive a kill -9 of the nspawn that started them.
        """
        if not self.path.exists():
            return None
        (self.path / "cgroup.kill").write_text("1")
        deadline = time.monotonic() + 60  # seconds; enough on a busy machine
        while self.alive():
            if time.monotonic() > deadline:
                raise TestbedError(f"{self.name}: processes survive cgroup.kill")
            time.sleep(0.02)
        while True:  # dying tasks keep v1 groups busy for a short time
            try:
                return self._remove()
            except OSError as error:
                if time.monotonic() > deadline:
                    raise TestbedError(f"{self.name}: cannot remove its cgroup: {error}") from error
                time.sleep(0.02)

    def _remove(self) -> None:
        for folder in filter(Path.exists, self._folders):
            for sub in sorted(folder.rglob("*"), reverse=True):
                if sub.is_dir():
                    sub.rmdir()
            folder.rmdir()

    # ------------------------------------------------------------ CPU
    @property
    def _quota(self) -> Path:
        """Return the file with the CPU quota: v1 if the controller is there, else v2."""
        if "cpu" in legacy():
            return legacy()["cpu"] / GROUP / self.name / "cpu.cfs_quota_us"
        return self.path / "cpu.max"

    def limit_cpu(self, percent: float | None) -> None:
        """Limit a host to this percentage of one core; None: no limit."""
        quota = None if percent is None else int(percent * PERIOD / 100)
        if self._quota.name == "cpu.max":
            self._quota.write_text(f"{'max' if quota is None else quota} {PERIOD}")
        else:
            self._quota.with_name("cpu.cfs_period_us").write_text(str(PERIOD))
            self._quota.write_text(str(-1 if quota is None else quota))

    # ------------------------------------------------------------ memory
    def limit_memory(self, size: int | None) -> None:
        """Limit a host's memory in bytes; None: no limit."""
        if "memory" in legacy():
            limit = legacy()["memory"] / GROUP / self.name / "memory.limit_in_bytes"
            limit.write_text(str(-1 if size is None else size))
        else:  # limit the group that is the host's root, so that the host sees the limit
            (self.path / "cgroup.subtree_control").write_text("+memory")
            (self.path / "payload/memory.max").write_text(str(size or "max"))


def host_names() -> set[str]:
    """Return the hosts that have cgroups, even if the records say otherwise."""
    return {folder.name.split("-")[0] for folder in (unified() / GROUP).glob("node*")}


def remove_all() -> None:
    """Remove the testbed's folder from every hierarchy; no host may exist any more."""
    for hierarchy in _hierarchies():
        if (hierarchy / GROUP).exists():
            (hierarchy / GROUP).rmdir()
