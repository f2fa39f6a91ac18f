# Apache-2.0 (see LICENSE)
"""Reads properties of network interfaces and RDMA devices from /sys."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ansible_collections.ftcluster.cluster.plugins.module_utils.resources import read

INTERFACES, RDMA = Path("/sys/class/net"), Path("/sys/class/infiniband")
DEVICES = Path("/dev")


def hardware(interface: Path) -> list[Path]:
    """Return the folders of the hardware interfaces that an interface uses (bond, bridge, VLAN).

    A software interface such as veth or tun uses no hardware; the kernel invents its speed.
    """
    if (interface / "device").exists():
        return [interface]
    return [found for below in sorted(interface.glob("lower_*")) for found in hardware(below)]


def link_speed(interface: Path) -> int | None:
    """Return the speed of a link in Mbit/s, or None if it is unknown.

    If the link uses several hardware interfaces, return the speed of the fastest one, because a TCP
    connection uses only one interface.
    """
    speeds = [read(folder / "speed").strip() for folder in hardware(interface)]
    # an unknown speed is -1; some drivers print -1 as an unsigned number
    known = [int(speed) for speed in speeds if speed.isdigit() and 0 < int(speed) < 2**32 - 1]
    return max(known, default=None)


def driver(device: Path) -> str:
    """Return the name of a device's driver, or ""."""
    link = device / "driver"
    return link.resolve().name if link.exists() else ""


def drivers(interface: Path) -> str:
    """Return the drivers of an interface's hardware, or ""."""
    found = {driver(folder / "device") for folder in hardware(interface)}
    return "+".join(sorted(found - {""}))


def above(interface: Path) -> Iterator[str]:
    """Return the names of bonds and VLANs that use an interface; RDMA does not use bridges."""
    for upper in sorted(interface.glob("upper_*")):
        if not (upper / "bridge").exists():
            yield upper.name[len("upper_") :]
            yield from above(upper)


def opens(path: Path) -> bool:
    """Return True if this process can open a device, and its mode lets every account open it."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        return path.stat().st_mode & 0o006 == 0o006
    except OSError:
        return False


def special_files(device: Path, kind: str, dev: Path) -> list[Path]:
    """Return the files in /dev through which programs use an RDMA device."""
    if kind == "hfi1":  # specific to Omni-Path
        return sorted(dev.glob("hfi1_[0-9]*"))
    found = [
        dev / "infiniband" / verbs.name for verbs in device.glob("device/infiniband_verbs/uverbs*")
    ]
    # EFA has no connection manager
    return found if kind == "efa" or not found else [*found, dev / "infiniband" / "rdma_cm"]


def rdma_devices(folder: Path = RDMA, dev: Path = DEVICES) -> list[dict[str, Any]]:
    """Return the RDMA devices, as documented in host_facts."""
    found = []
    for device in sorted(folder.glob("*")):
        kind = driver(device / "device")
        own = sorted(device.glob("device/net/*"))
        files = special_files(device, kind, dev)
        ports = list(device.glob("ports/*"))
        found.append({
            "name": device.name,
            "driver": kind,
            "iwarp": read(device / "node_type").startswith("4"),
            "active": any(read(port / "state").startswith("4") for port in ports),
            "interfaces": [name for one in own for name in (one.name, *above(one))],
            "opens": bool(files) and all(map(opens, files)),
        })  # fmt: skip
    return found
