# Apache-2.0 (see LICENSE)
"""Reads the ephemeral TCP ports of a host, and the ports on which programs listen."""

from __future__ import annotations

from collections.abc import Callable

from ansible_collections.ftcluster.cluster.plugins.module_utils.number_list import (
    number_list,
    ranges,
)

USUAL = "32768\t60999"  # Linux, Documentation/networking/ip-sysctl.rst: ip_local_port_range
LISTEN = "0A"  # Linux, include/net/tcp_states.h


def local_ports(read: Callable[[str], str]) -> list[str]:
    """Return the kernel's ephemeral ports, except reserved ports, as ranges.

    `read` is a function that returns the text of a file of /proc, or "" on failure.
    """
    folder = "/proc/sys/net/ipv4"
    low, high = (read(f"{folder}/ip_local_port_range") or USUAL).split()
    reserved = number_list(read(f"{folder}/ip_local_reserved_ports"))
    return ranges(set(range(int(low), int(high) + 1)) - reserved)


def is_loopback(address: str) -> bool:
    """Return True if an address of /proc/net/tcp or tcp6 is loopback."""
    if len(address) == 8:
        return address.endswith("7F")
    mapped = address.startswith("0000000000000000FFFF0000") and address.endswith("7F")
    return mapped or address == "0" * 24 + "01000000"


def listeners(read: Callable[[str], str]) -> dict[int, set[int]]:
    """Return the ports on which programs accept other hosts' connections, with their user ids."""
    found: dict[int, set[int]] = {}
    for name in ("tcp", "tcp6"):
        for line in read(f"/proc/net/{name}").splitlines()[1:]:
            fields = line.split()
            if len(fields) > 7 and fields[3] == LISTEN:
                address, port = fields[1].partition(":")[::2]
                if not is_loopback(address):
                    found.setdefault(int(port, 16), set()).add(int(fields[7]))
    return found
