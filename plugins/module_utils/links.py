# Apache-2.0 (see LICENSE)
"""What /sys says of network interfaces and RDMA devices."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ansible_collections.ftcluster.cluster.plugins.module_utils.resources import read

INTERFACES, RDMA = Path("/sys/class/net"), Path("/sys/class/infiniband")
DEVICES = Path("/dev")


def hardware(interface: Path) -> list[Path]:
    """The folders of the interfaces with a device: this one, or those below a bond, bridge or VLAN.

    An interface of software alone, such as veth or tun, has none; its speed is made up.
    """
    if (interface / "device").exists():
        return [interface]
    return [found for below in sorted(interface.glob("lower_*")) for found in hardware(below)]


def link_speed(interface: Path) -> int | None:
    """The speed of a link in Mbit/s, or None where it is unknown.

    Of several interfaces below it, that of the fastest one: a TCP connection uses one of them.
    """
    speeds = [read(folder / "speed").strip() for folder in hardware(interface)]
    # unknown is -1, and that as an unsigned number in some drivers
    known = [int(speed) for speed in speeds if speed.isdigit() and 0 < int(speed) < 2**32 - 1]
    return max(known, default=None)


def driver(device: Path) -> str:
    """The name of a device's driver, or ""."""
    link = device / "driver"
    return link.resolve().name if link.exists() else ""


def drivers(interface: Path) -> str:
    """The drivers of an interface's hardware, or ""."""
    found = {driver(folder / "device") for folder in hardware(interface)}
    return "+".join(sorted(found - {""}))


def above(interface: Path) -> Iterator[str]:
    """Names of the bonds and VLANs over an interface; RDMA does not go through a bridge."""
    for upper in sorted(interface.glob("upper_*")):
        if not (upper / "bridge").exists():
            yield upper.name[len("upper_") :]
            yield from above(upper)


def opens(path: Path) -> bool:
    """Whether this process can open a device, and every other account may."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        return path.stat().st_mode & 0o006 == 0o006
    except OSError:
        return False


def special_files(device: Path, kind: str, dev: Path) -> list[Path]:
    """The files in /dev through which programs use an RDMA device."""
    if kind == "hfi1":  # Omni-Path's own
        return sorted(dev.glob("hfi1_[0-9]*"))
    found = [
        dev / "infiniband" / verbs.name for verbs in device.glob("device/infiniband_verbs/uverbs*")
    ]
    # EFA has no connection manager
    return found if kind == "efa" or not found else [*found, dev / "infiniband" / "rdma_cm"]


def rdma_devices(folder: Path = RDMA, dev: Path = DEVICES) -> list[dict[str, Any]]:
    """The RDMA devices, as documented in host_facts."""
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
