"""Kernel settings of this machine that testbeds change; the last testbed to end restores them."""

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

# Every systemd needs some inotify instances, and root's limit counts all hosts together. Above the
# limit, a host starts without dbus or sshd.
INOTIFY = "fs/inotify/max_user_instances"
INOTIFY_A_HOST = 24
# The kernel counts the ARP entries of all namespaces together. Above the limit (1024), hosts of a
# full mesh get "no route" to each other; 32 hosts reach it with 33 * 32 entries.
NEIGHBOURS = "net/ipv4/neigh/default/gc_thresh"


@dataclass
class Shared:
    """The kernel settings that running testbeds have changed.

    Attributes:
        before: values of the settings before the first testbed changed them, by name.
        nodes: number of hosts of each testbed, by its network namespace.
    """

    before: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, int] = field(default_factory=dict)


@contextlib.contextmanager
def _shared() -> Iterator[Shared]:
    """Change the record while the other testbeds wait."""
    with RECORD.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shared = Shared(**json.loads(RECORD.read_text())) if RECORD.exists() else Shared()
        yield shared
        RECORD.write_text(json.dumps(asdict(shared)))


def put(name: str, value: int) -> None:
    """Change a setting after storing its old value."""
    with _shared() as shared:
        _put(shared, name, value)


def _put(shared: Shared, name: str, value: int) -> None:
    shared.before.setdefault(name, (ROOT / name).read_text())
    (ROOT / name).write_text(str(value))


def make_room(settings: Settings) -> None:
    """Raise the limits that this number of hosts would exceed."""
    with _shared() as shared:
        shared.nodes[SWITCH] = settings.nodes
        nodes = sum(shared.nodes.values())
        wanted = 128 + INOTIFY_A_HOST * nodes
        if int((ROOT / INOTIFY).read_text()) < wanted:
            _put(shared, INOTIFY, wanted)
        entries = 4 * (nodes + 1) ** 2
        # the hard limit first, because the other limits must be below it
        for level in ("3", "2", "1"):
            if int((ROOT / f"{NEIGHBOURS}{level}").read_text()) < entries:
                _put(shared, f"{NEIGHBOURS}{level}", entries)


def is_up(name: str) -> bool:
    """Return True if a testbed is up, by its network namespace."""
    return Path("/run/netns", name).exists()


def put_back() -> None:
    """Restore all settings, unless another testbed needs them."""
    with _shared() as shared:
        shared.nodes.pop(SWITCH, None)
        # skip testbeds of killed processes, whose namespaces no longer exist
        for name in [name for name in shared.nodes if not is_up(name)]:
            del shared.nodes[name]
        if not shared.nodes:
            for name, value in shared.before.items():
                (ROOT / name).write_text(value)
            shared.before.clear()
