# Apache-2.0 (see LICENSE)
"""Finds a host's network interfaces, and the address at which other hosts reach it."""

from __future__ import annotations

import ipaddress
import itertools
import json
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.ftcluster.cluster.plugins.module_utils.links import (
    INTERFACES,
    drivers,
    link_speed,
)

MOST_TRIED = 4  # maximum number of names to resolve; an unanswered query takes seconds
# documentation addresses (RFC 5737, RFC 3849): only the default route leads to them
FAR_AWAY = ((socket.AF_INET, "203.0.113.1"), (socket.AF_INET6, "2001:db8::1"))


def plain(text: str) -> str:
    """Convert an address to its canonical form; return "" if the string is not an address.

    IPv4-mapped IPv6 addresses become IPv4; brackets and scopes (%eth0) are removed.
    """
    try:
        address = ipaddress.ip_address(text.strip().strip("[]").partition("%")[0])
    except ValueError:
        return ""
    return str(getattr(address, "ipv4_mapped", None) or address)


def is_loopback(text: str) -> bool:
    """Return True if a string is a loopback address."""
    return bool(plain(text)) and ipaddress.ip_address(plain(text)).is_loopback


def interfaces(text_of_ip_json: str, folder: Path = INTERFACES) -> list[dict[str, Any]]:
    """Return the network interfaces except loopback, with IPv4 and global IPv6 addresses.

    The input is the output of `ip -json address`. The speed of a link is None if the driver does
    not know the speed, as in most virtual machines.
    """
    try:
        links = json.loads(text_of_ip_json)
    except (ValueError, RecursionError):
        return []
    return [
        {
            "name": link["ifname"],
            "addresses": [
                plain(entry["local"])
                for entry in link.get("addr_info", [])
                if entry.get("local") and reachable(entry)
            ],
            "speed_mbits": link_speed(folder / link["ifname"]),
            "mtu": link.get("mtu", 0),
            "driver": drivers(folder / link["ifname"]),
        }
        for link in links
        if link.get("ifname") and "LOOPBACK" not in link.get("flags", [])
    ]


def reachable(entry: Mapping[str, Any]) -> bool:
    """Return True if another host could use an address of `ip -json address`."""
    if entry.get("tentative") or entry.get("dadfailed"):
        return False
    return entry.get("family") == "inet" or entry.get("scope") == "global"


def resolve(name: str) -> list[str]:
    """Return the addresses that a name resolves to on this host, IPv4 first."""
    if plain(name):
        return [plain(name)]
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return [plain(str(entry[4][0])) for entry in found]


def source_address(
    others: Iterable[str] = (),
    make_socket: Callable[..., Any] = socket.socket,
    resolve: Callable[[str], list[str]] = resolve,
) -> str:
    """Return this host's source address for connections to other hosts, or "".

    Args:
        others: addresses or names of other hosts; the first host with a route determines the
            address. If there is none, the default route does.
    """
    known = (address for name in others for address in resolve(name))
    towards = [
        (socket.AF_INET6 if ":" in address else socket.AF_INET, address)
        for address in itertools.islice(known, MOST_TRIED)
    ]
    for family, target in [*towards, *FAR_AWAY]:
        try:
            # connecting a UDP socket looks up the route and sends nothing
            with make_socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((target, 9))
                source = plain(probe.getsockname()[0])
        except OSError:
            continue
        if not is_loopback(source):
            return source
    return ""


def find_ssh_connection(
    environment: Mapping[str, str], parent: int, read: Callable[[str], str]
) -> str:
    """Return the variable SSH_CONNECTION of this process or of a parent.

    Parents are searched because sudo removes the variable.

    Args:
        environment: environment variables of this process.
        parent: process id of the parent.
        read: function that returns the text of a file of /proc, or "" on failure.
    """
    if environment.get("SSH_CONNECTION"):
        return environment["SSH_CONNECTION"]
    while parent > 1:
        for setting in read(f"/proc/{parent}/environ").split("\0"):
            name, value = setting.partition("=")[::2]
            if name == "SSH_CONNECTION" and value:
                return value
        above = [
            line.split()[1]
            for line in read(f"/proc/{parent}/status").splitlines()
            if line.startswith("PPid:")
        ]
        parent = int(above[0]) if above else 0
    return ""


def ipv4_of(nics: Sequence[Mapping[str, Any]], name: str, address: str) -> str:
    """Return the address if it is IPv4, else the interface's first IPv4 address, if any."""
    own: list[str] = [one for nic in nics if nic["name"] == name for one in nic["addresses"]]
    return next((one for one in [address, *own] if ":" not in one), address)


def choose_address(
    given: str,
    inventory: str,
    nics: Sequence[Mapping[str, Any]],
    ssh_connection: str,
    default: str,
    resolve: Callable[[str], list[str]] = resolve,
) -> tuple[str, str]:
    """Return the address at which other hosts reach this host, and the name of its interface.

    The first available address of this list is used:

    1. the user's setting, unchanged;
    2. the inventory's address, if an interface of this host has it (a public address is often on no
       interface, and Debian resolves the host's own name to 127.0.1.1);
    3. the local address of the SSH connection, which is the inner address behind NAT;
    4. the source address for connections to other hosts, or of the default route;
    5. the inventory's address, unchanged.

    mpirun supports only IPv4. Therefore an IPv6 address that the user did not set is replaced by an
    IPv4 address of the same interface, if the interface has one.

    The interface is "" if no interface has the address, and "lo" for loopback.

    Args:
        given: the user's setting: an address, a name or "".
        inventory: the inventory's address or name, or "".
        nics: result of `interfaces`.
        ssh_connection: variable SSH_CONNECTION.
        default: result of `source_address`.
        resolve: function that returns the addresses of a name.
    """
    owner = {address: nic["name"] for nic in nics for address in nic["addresses"]}
    given, inventory = given.strip(), inventory.strip()
    if given:
        addresses = resolve(given)
        names = [owner[address] for address in addresses if address in owner]
        if any(is_loopback(address) for address in addresses):
            names.append("lo")
        names.append(given.partition("%")[2])
        return given, names[0]
    for address in resolve(inventory) if inventory else ():
        if address in owner and not is_loopback(address):
            return ipv4_of(nics, owner[address], address), owner[address]
    fields = ssh_connection.split()
    address = plain(fields[2]) if len(fields) == 4 else ""
    if address in owner:
        return ipv4_of(nics, owner[address], address), owner[address]
    if default and not is_loopback(default):
        name = owner.get(default, "")
        return ipv4_of(nics, name, default), name
    return inventory, ""
