"""Kernel settings of this machine that testbeds change; the last one that ends puts them back."""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .settings import SWITCH, Settings

ROOT = Path("/proc/sys")
RECORD = Path("/run/ftcluster-testbeds.json")

# Every systemd takes some; root's limit counts those of all hosts together. Past it a host comes
# up without dbus or sshd.
INOTIFY = "fs/inotify/max_user_instances"
INOTIFY_A_HOST = 24
# The kernel counts the ARP entries of all namespaces together. Past its limit (1024) hosts of a
# full mesh find "no route" to each other, which 32 hosts reach: 33 * 32 entries.
NEIGHBOURS = "net/ipv4/neigh/default/gc_thresh"


@dataclass
class Shared:
    """The kernel settings that running testbeds have changed.

    Attributes:
        before: the settings' values before the first of them, by name.
        nodes: the number of hosts of each, by its network namespace.
    """

    before: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, int] = field(default_factory=dict)


@contextlib.contextmanager
def _shared() -> Iterator[Shared]:
    """Change the record, with the other testbeds waiting."""
    with RECORD.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shared = Shared(**json.loads(RECORD.read_text())) if RECORD.exists() else Shared()
        yield shared
        RECORD.write_text(json.dumps(asdict(shared)))


def put(name: str, value: int) -> None:
    """Set one, having kept what it was."""
    with _shared() as shared:
        _put(shared, name, value)


def _put(shared: Shared, name: str, value: int) -> None:
    shared.before.setdefault(name, (ROOT / name).read_text())
    (ROOT / name).write_text(str(value))


def make_room(settings: Settings) -> None:
    """Raise the limits that so many hosts would hit."""
    with _shared() as shared:
        shared.nodes[SWITCH] = settings.nodes
        nodes = sum(shared.nodes.values())
        wanted = 128 + INOTIFY_A_HOST * nodes
        if int((ROOT / INOTIFY).read_text()) < wanted:
            _put(shared, INOTIFY, wanted)
        entries = 4 * (nodes + 1) ** 2
        for level in ("3", "2", "1"):  # the hard limit first: the others must be below it
            if int((ROOT / f"{NEIGHBOURS}{level}").read_text()) < entries:
                _put(shared, f"{NEIGHBOURS}{level}", entries)


def is_up(name: str) -> bool:
    """Return True if a testbed is up, by its network namespace."""
    return Path("/run/netns", name).exists()


def put_back() -> None:
    """Put all back, unless another testbed needs it."""
    with _shared() as shared:
        shared.nodes.pop(SWITCH, None)
        # those of a killed process, whose namespaces are gone as well
        for name in [name for name in shared.nodes if not is_up(name)]:
            del shared.nodes[name]
        if not shared.nodes:
            for name, value in shared.before.items():
                (ROOT / name).write_text(value)
            shared.before.clear()
