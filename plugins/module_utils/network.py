# Apache-2.0 (see LICENSE)
"""A host's network interfaces, and the address that other hosts reach it by."""

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

MOST_TRIED = 4  # other hosts; a name that nobody answers for takes seconds
# RFC 5737 and RFC 3849: documentation addresses, which only a default route leads to
FAR_AWAY = ((socket.AF_INET, "203.0.113.1"), (socket.AF_INET6, "2001:db8::1"))


def plain(text: str) -> str:
    """An address in canonical form, or "" if the text is not one.

    Takes IPv4-mapped IPv6 addresses as IPv4, and leaves out brackets and scopes (%eth0).
    """
    try:
        address = ipaddress.ip_address(text.strip().strip("[]").partition("%")[0])
    except ValueError:
        return ""
    return str(getattr(address, "ipv4_mapped", None) or address)


def is_loopback(text: str) -> bool:
    """Whether a text is a loopback address."""
    return bool(plain(text)) and ipaddress.ip_address(plain(text)).is_loopback


def interfaces(text_of_ip_json: str, folder: Path = INTERFACES) -> list[dict[str, Any]]:
    """The network interfaces but loopback, with IPv4 and global IPv6 addresses.

    Takes the output of `ip -json address`. The link's speed is None where the driver does not know
    it, as those of virtual machines mostly do not.
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
    """Whether another host could use an address of `ip -json address`."""
    if entry.get("tentative") or entry.get("dadfailed"):
        return False
    return entry.get("family") == "inet" or entry.get("scope") == "global"


def resolve(name: str) -> list[str]:
    """The addresses that a name resolves to on this host, IPv4 first."""
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
    """The source address towards the first of these hosts that there is a route to, or "".

    Takes their addresses or names. Without any it is the source address of the default route.
    """
    known = (address for name in others for address in resolve(name))
    towards = [
        (socket.AF_INET6 if ":" in address else socket.AF_INET, address)
        for address in itertools.islice(known, MOST_TRIED)
    ]
    for family, target in [*towards, *FAR_AWAY]:
        try:
            # Connecting a UDP socket looks up the route and sends nothing.
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
    """SSH_CONNECTION of this process or of a parent, because sudo removes it.

    Takes the environment as a dictionary, the parent's process id, and a function that reads a
    file of /proc and returns "" where it cannot.
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
    """The first IPv4 address of the interface, or the given one if that is one or there is none."""
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
    """The address that other hosts reach this one by, and its interface's name.

    Takes what the user has set and the inventory's word, each an address, a name or "", the result
    of `interfaces`, the variable SSH_CONNECTION and the result of `source_address`. In this order:

    1. what was set, as it is;
    2. the inventory's word, if it is an address of this host here on this host. Seen from the
       control node it may be a public one, and Debian gives a host's own name 127.0.1.1;
    3. the address that SSH came in at, which behind NAT is the inner one;
    4. the source address towards the other hosts, or of the default route;
    5. the inventory's word, as it is.

    In place of an IPv6 address of an interface that was not set, an IPv4 address of the same one is
    taken if there is one: mpirun takes no other.

    The interface is "" where none has the address, "lo" for loopback.
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
