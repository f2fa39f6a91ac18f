"""What a testbed is made of: its settings, and the names and addresses that follow from them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from .shell import TestbedError

DEFAULT_NODES = 4
MAX_NODES = 200  # addresses .10 to .209
FIRST_ADDRESS = 10

# Testbeds with different names exist beside each other; one letter, because a network interface
# has at most 15 and one is called after it.
NAME = os.environ.get("FTCLUSTER_TESTBED_NAME", "").strip()
if not re.fullmatch(r"[a-z]?", NAME):
    raise TestbedError(f"FTCLUSTER_TESTBED_NAME={NAME}: want one letter, or nothing")
SWITCH = f"ftc-testbed{NAME}"  # the network namespace of the switch and of the control host
BRIDGE = "br0"  # the switch itself, inside that namespace
GROUP = f"ftcluster-testbed{NAME}"  # our folder in every cgroup hierarchy
OVERLAY = f"ftcluster-testbed{NAME}"  # the "device" of our overlay mounts, to know them by
LOCK = Path(f"/run/ftcluster-testbed{NAME}.lock")  # one command at a time changes the testbed

SHARED = Path("/var/tmp/ftcluster-testbed")  # root file systems for testbeds of all names

OPERATOR = "ops"  # the account that an administrator logs in with
OPERATOR_ID = 1000


@dataclass(frozen=True)
class Node:
    """One host: its name, its place in the network and its folder on this machine."""

    name: str
    address: str
    mac: str  # fixed: peers keep a host's MAC in their ARP caches across its reboots
    gateway: str
    folder: Path

    @property
    def netns(self) -> str:
        return f"{SWITCH}-{self.name}"

    @property
    def delay_port(self) -> str:
        """The switch port that the delay line makes, when the host has one."""
        return f"{self.name}-d"

    @property
    def root(self) -> Path:
        """Where the host's disk is mounted while the host is on."""
        return self.folder / "root"

    @property
    def host_key(self) -> Path:
        """The host's public key, on its disk: readable with the host off, too."""
        return self.folder / "upper/etc/ssh/ssh_host_ed25519_key.pub"


@dataclass(frozen=True)
class Settings:
    """How to build a testbed. Every field has an environment variable; see the README."""

    dir: Path = Path(f"/var/tmp/ftcluster-testbed{NAME}")
    nodes: int = 0  # 0: not said, so as many as there are, or DEFAULT_NODES
    suite: str = "bookworm"
    net: str = "198.18.0"  # in the benchmarking range of RFC 2544, which is routed nowhere
    extra: tuple[str, ...] = ()  # more Debian packages for the root file system
    bind_ro: tuple[str, ...] = ()  # paths of this machine that every host sees, read-only

    def __post_init__(self) -> None:
        if not 0 <= self.nodes <= MAX_NODES:
            raise TestbedError(f"{self.nodes} hosts: want 1 to {MAX_NODES}")
        if not re.fullmatch(r"[a-z]+", self.suite):
            raise TestbedError(f"suite {self.suite!r}: want a Debian code name such as bookworm")
        octets = self.net.split(".")
        if len(octets) != 3 or not all(o.isdecimal() and int(o) < 256 for o in octets):
            raise TestbedError(f"network {self.net!r}: want three numbers such as 198.18.0")
        if self.net == "198.18.255":
            raise TestbedError("network 198.18.255 is taken: the testbed's uplink is there")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """Read the FTCLUSTER_TESTBED_* variables; an empty one counts as unset."""

        def value(name: str) -> str:
            return environ.get(f"FTCLUSTER_TESTBED_{name}", "").strip()

        nodes = value("NODES") or "0"
        if not nodes.isdecimal():
            raise TestbedError(f"FTCLUSTER_TESTBED_NODES={nodes}: want a number")
        return cls(
            dir=Path(value("DIR") or cls.dir).absolute(),
            nodes=int(nodes),
            suite=value("SUITE") or cls.suite,
            net=value("NET") or cls.net,
            extra=tuple(sorted(filter(None, value("EXTRA").split(",")))),
            bind_ro=tuple(value("BIND_RO").split()),
        )

    # ------------------------------------------------------------ folders
    @property
    def hosts(self) -> Path:
        """Everything of the testbed that is up; `down` removes it."""
        return self.dir / "hosts"

    @property
    def cache(self) -> Path:
        """The built root file systems, the same for all names; `down` keeps them."""
        return (SHARED if self.dir == Settings.dir else self.dir) / "cache"

    @property
    def base(self) -> Path:
        """A link to the root file system under every disk of this testbed."""
        return self.hosts / "base"

    # ------------------------------------------------------------ hosts
    def node(self, name: str) -> Node:
        number = FIRST_ADDRESS + int(name.removeprefix("node"))
        return Node(
            name=name,
            address=f"{self.net}.{number}",
            mac=f"02:00:00:00:01:{number:02x}",
            gateway=self.control_address,
            folder=self.hosts / name,
        )

    def all_nodes(self) -> list[Node]:
        return [self.node(f"node{i}") for i in range(self.nodes)]

    @property
    def control_address(self) -> str:
        return f"{self.net}.1"

    # ------------------------------------------------------------ the record
    @property
    def record(self) -> Path:
        return self.hosts / "testbed.json"

    def write_record(self) -> None:
        """Keep the settings with the hosts, so that later commands need not repeat them."""
        self.hosts.mkdir(parents=True, exist_ok=True)
        saved = {k: v for k, v in asdict(self).items() if k != "dir"}
        self.record.write_text(json.dumps(saved, indent=2) + "\n")

    def recorded(self) -> Settings | None:
        """The settings of the testbed that is up in this folder, if one is."""
        if not self.record.exists():
            return None
        saved = json.loads(self.record.read_text())
        return Settings(
            dir=self.dir,
            nodes=saved["nodes"],
            suite=saved["suite"],
            net=saved["net"],
            extra=tuple(saved["extra"]),
            bind_ro=tuple(saved["bind_ro"]),
        )
