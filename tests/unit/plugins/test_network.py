import json
import socket
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ftcluster.cluster.plugins.module_utils.network import (
    choose_address,
    find_ssh_connection,
    interfaces,
    is_loopback,
    plain,
    resolve,
    source_address,
)

NICS = [
    {"name": "eth0", "addresses": ["10.0.0.13", "2001:db8:5::13"], "speed_mbits": 25000},
    {"name": "eth1", "addresses": ["192.168.7.3"], "speed_mbits": None},
    {"name": "eth2", "addresses": ["2001:db8:6::1"], "speed_mbits": None},
]
SSH = "198.51.100.9 51000 10.0.0.13 22"
NAMES = {
    "node3": ["127.0.1.1"],
    "node3.lan": ["203.0.113.7", "192.168.7.3"],
    "localhost": ["127.0.0.1", "::1"],
}


def choose(
    inventory: str = "", ssh: str = "", default: str = "", address: str = ""
) -> tuple[str, str]:
    chosen: tuple[str, str] = choose_address(
        address, inventory, NICS, ssh, default,
        resolve=lambda name: [plain(name)] if plain(name) else NAMES.get(name, []),
    )  # fmt: skip
    return chosen


def test_what_was_set_the_inventorys_word_ssh_and_the_last_resorts() -> None:
    assert choose("10.0.0.13", SSH, address="192.168.7.3") == ("192.168.7.3", "eth1")
    assert choose(address="node3.lan") == ("node3.lan", "eth1")
    assert choose(address="172.16.0.1") == ("172.16.0.1", "")
    assert choose(address="127.0.0.1") == ("127.0.0.1", "lo")
    assert choose(address="localhost") == ("localhost", "lo")
    assert choose(address="fe80::1%eth1") == ("fe80::1%eth1", "eth1")
    # the inventory's address is used if the host has it
    assert choose("192.168.7.3", SSH) == ("192.168.7.3", "eth1")
    assert choose("::ffff:192.168.7.3", SSH) == ("192.168.7.3", "eth1")
    assert choose("2001:0db8:5::0013", SSH) == ("10.0.0.13", "eth0")  # mpirun needs IPv4
    # the interface has no other address
    assert choose("2001:db8:6::1", SSH) == ("2001:db8:6::1", "eth2")
    assert choose("node3.lan", SSH) == ("192.168.7.3", "eth1")
    # SSH over IPv6, or without a usable address
    assert choose(ssh="::ffff:1.2.3.4 51000 ::ffff:10.0.0.13 22")[0] == "10.0.0.13"
    assert choose(ssh="2001:db8::9 51000 2001:db8:5::13 22") == ("10.0.0.13", "eth0")
    assert choose(default="2001:db8:5::13") == ("10.0.0.13", "eth0")
    assert choose(address="2001:db8:5::13") == ("2001:db8:5::13", "eth0")
    for ssh in ("fe80::2%eth0 51000 fe80::1%eth0 22", "127.0.0.1 5 127.0.0.1 22", "odd", ""):
        assert choose(ssh=ssh, default="192.168.7.3") == ("192.168.7.3", "eth1")
    # the last alternatives
    assert choose("node3", default="172.16.0.1") == ("172.16.0.1", "")
    assert choose("203.0.113.7", default="127.0.0.1") == ("203.0.113.7", "")
    assert choose() == ("", "")


@pytest.mark.parametrize("word", ["203.0.113.7", "node3", "localhost", "an-alias-of-ssh-config"])
def test_behind_nat_the_address_ssh_came_in_at(word: str) -> None:
    assert choose(word, SSH, default="192.168.7.3") == ("10.0.0.13", "eth0")


def entry(address: str, scope: str = "global", **more: Any) -> dict[str, Any]:
    family = "inet6" if ":" in address else "inet"
    return {"family": family, "local": address, "scope": scope, **more}


def test_interfaces_as_ip_lists_them(tmp_path: Path) -> None:
    links = [
        {"ifname": "lo", "flags": ["LOOPBACK", "UP"], "addr_info": [entry("127.0.0.1", "host")]},
        {"ifname": "eth0", "flags": ["UP"], "mtu": 9000, "addr_info": [
            entry("10.0.0.13"), entry("2001:db8:5::13"), entry("fe80::1", "link"),
            entry("2001:db8:5::14", dadfailed=True), entry("2001:db8:5::15", tentative=True),
        ]},
        {"ifname": "veth0", "mtu": 1500},
        {},
    ]  # fmt: skip
    (tmp_path / "drivers/ice").mkdir(parents=True)
    (tmp_path / "eth0/device").mkdir(parents=True)
    (tmp_path / "eth0/speed").write_text("25000\n")
    (tmp_path / "eth0/device/driver").symlink_to(tmp_path / "drivers/ice")
    assert interfaces(json.dumps(links), tmp_path) == [
        {"name": "eth0", "addresses": ["10.0.0.13", "2001:db8:5::13"], "speed_mbits": 25000,
         "mtu": 9000, "driver": "ice"},
        {"name": "veth0", "addresses": [], "speed_mbits": None, "mtu": 1500, "driver": ""},
    ]  # fmt: skip
    # no interfaces without a listing
    assert interfaces("") == interfaces('Option "-json" is unknown, try "ip -help".') == []


def test_spellings_of_addresses() -> None:
    assert plain("[2001:DB8::1]") == "2001:db8::1"
    assert plain("fe80::1%eth0") == "fe80::1"
    assert plain("node3") == plain("") == plain("10.0.0") == ""
    assert is_loopback("127.0.1.1")
    assert is_loopback("::ffff:127.0.0.1")
    assert not is_loopback("10.0.0.1")
    assert not is_loopback("node3")
    # names are resolved on the host
    assert "127.0.0.1" in resolve("localhost")
    assert resolve("10.0.0.13") == ["10.0.0.13"]
    assert resolve("a" * 300) == []  # not a name at all: socket raises UnicodeError


def test_ssh_connection_is_found_above_sudo() -> None:
    files = {
        "/proc/40/environ": "SUDO_USER=ops\0PATH=/bin\0",
        "/proc/40/status": "Name:\tsudo\nPPid:\t30\n",
        "/proc/30/environ": f"HOME=/home/ops\0SSH_CONNECTION={SSH}\0",
    }

    def find(environment: dict[str, str], parent: int) -> Any:
        return find_ssh_connection(environment, parent, lambda path: files.get(path, ""))

    assert find({"SSH_CONNECTION": "a 1 b 2"}, 40) == "a 1 b 2"
    assert find({}, 40) == SSH
    assert find({}, 50) == find({}, 1) == ""


class Probe:
    """A UDP socket of a host that has a route for only one address family."""

    def __init__(self, family: int, kind: int) -> None:
        assert kind == socket.SOCK_DGRAM
        self.family = family

    def __enter__(self) -> "Probe":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def connect(self, _target: tuple[str, int]) -> None:
        if self.family == socket.AF_INET:
            raise OSError(101, "Network is unreachable")

    def getsockname(self) -> tuple[str, int, int, int]:
        return ("2001:db8:5::13", 5000, 0, 0)


def test_the_default_routes_source() -> None:
    def no_family(_family: int, _kind: int) -> Any:
        raise OSError(97, "Address family not supported")

    assert source_address(make_socket=Probe) == "2001:db8:5::13"
    assert source_address(make_socket=no_family) == ""


class Routes(Probe):
    """A UDP socket of a host with a LAN and a VPN; the default route leads to the VPN."""

    def connect(self, target: tuple[str, int]) -> None:
        self.source = "192.168.0.10" if target[0].startswith("192.168.0.") else "100.64.0.5"
        if target[0].startswith("127."):
            self.source = "127.0.0.1"

    def getsockname(self) -> tuple[str, int, int, int]:
        return (self.source, 5000, 0, 0)


def test_the_source_towards_the_other_hosts() -> None:
    names = {"m2": ["192.168.0.11"], "m1": ["127.0.1.1"]}

    def source(*others: str) -> str:
        return source_address(others, Routes, lambda name: names.get(name, []))  # type: ignore[no-any-return]

    assert source("gone", "m1", "m2") == "192.168.0.10"
    assert source("gone") == source() == "100.64.0.5"
