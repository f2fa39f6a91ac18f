"""Kernel settings of this machine that the testbed has to change, and puts back."""

from __future__ import annotations

import json
from pathlib import Path

from .settings import Settings

ROOT = Path("/proc/sys")

# Every systemd takes some; root's limit counts those of all hosts together. Past it a host comes
# up without dbus or sshd.
INOTIFY = "fs/inotify/max_user_instances"
INOTIFY_A_HOST = 24
# The kernel counts the ARP entries of all namespaces together. Past its limit (1024) hosts of a
# full mesh find "no route" to each other, which 32 hosts reach: 33 * 32 entries.
NEIGHBOURS = "net/ipv4/neigh/default/gc_thresh"


def _before(settings: Settings) -> Path:
    return settings.hosts / "sysctl.before.json"


def put(settings: Settings, name: str, value: int) -> None:
    """Set one, having kept what it was."""
    before = _before(settings)
    kept = json.loads(before.read_text()) if before.exists() else {}
    kept.setdefault(name, (ROOT / name).read_text())
    before.write_text(json.dumps(kept))
    (ROOT / name).write_text(str(value))


def make_room(settings: Settings) -> None:
    """Raise the limits that so many hosts would hit."""
    wanted = 128 + INOTIFY_A_HOST * settings.nodes
    if int((ROOT / INOTIFY).read_text()) < wanted:
        put(settings, INOTIFY, wanted)
    entries = 4 * (settings.nodes + 1) ** 2
    for level in ("3", "2", "1"):  # the hard limit first: the others must be below it
        if int((ROOT / f"{NEIGHBOURS}{level}").read_text()) < entries:
            put(settings, f"{NEIGHBOURS}{level}", entries)


def put_back(settings: Settings) -> None:
    before = _before(settings)
    if before.exists():
        for name, value in json.loads(before.read_text()).items():
            (ROOT / name).write_text(value)
        before.unlink()
