"""The settings of a testbed, and the names and addresses that follow from them."""

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
NET = "198.18.0"  # in the benchmarking range of RFC 2544, which is not routed
CONTROL_ADDRESS = f"{NET}.1"
FIRST_ADDRESS = 10

# Testbeds with different names can exist at the same time. A name is one letter, because it is part
# of the name of a network interface, which has at most 15 characters.
NAME = os.environ.get("FTCLUSTER_TESTBED_NAME", "").strip()
if not re.fullmatch(r"[a-z]?", NAME):
    raise TestbedError(f"FTCLUSTER_TESTBED_NAME={NAME}: want one letter, or nothing")
SWITCH = f"ftc-testbed{NAME}"  # the network namespace of the switch and the control host
BRIDGE = "br0"  # the switch itself, inside that namespace
GROUP = f"ftcluster-testbed{NAME}"  # the testbed's folder in every cgroup hierarchy
# the "device" of overlay mounts begins with this text, which identifies them
OVERLAYS = "ftcluster-testbed"
OVERLAY = f"{OVERLAYS}{NAME}"
LOCK = Path(f"/run/ftcluster-testbed-{NAME}.lock")  # one command at a time changes the testbed

SHARED = Path("/var/tmp/ftcluster-testbed")  # root file systems for testbeds of all names

OPERATOR = "ops"  # the account that an administrator logs in with
OPERATOR_ID = 1000


@dataclass(frozen=True)
class Node:
    """A host: its name, its place in the network and its folder on this machine."""

    name: str
    address: str
    # fixed, because peers keep a host's MAC address in their ARP caches while the host reboots
    mac: str
    gateway: str
    folder: Path

    @property
    def netns(self) -> str:
        return f"{SWITCH}-{self.name}"

    @property
    def root(self) -> Path:
        """Return the mount point of the host's disk while the host is on."""
        return self.folder / "root"

    @property
    def host_key(self) -> Path:
        """The host's public key on its disk, which is readable even if the host is off."""
        return self.folder / "upper/etc/ssh/ssh_host_ed25519_key.pub"


@dataclass(frozen=True)
class Settings:
    """The settings of a testbed; see the README for the environment variables."""

    dir: Path = Path(f"/var/tmp/ftcluster-testbed{NAME}")
    nodes: int = 0  # number of hosts of the running testbed
    suite: str = "bookworm"
    extra: tuple[str, ...] = ()  # more Debian packages for the root file system
    # paths of this machine that every host sees, read-only; the path in the hosts follows a colon
    bind_ro: tuple[str, ...] = ()
    # folders that hosts may also write to, like a network file system that all mount
    shared: tuple[str, ...] = ()
    # folders of this machine whose trees are layered above the root file system; each host has its
    # own changes
    layers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z]+", self.suite):
            raise TestbedError(f"suite {self.suite!r}: want a code name such as bookworm")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """Read the FTCLUSTER_TESTBED_* variables; an empty one counts as unset."""

        def value(name: str) -> str:
            return environ.get(f"FTCLUSTER_TESTBED_{name}", "").strip()

        return cls(
            dir=Path(value("DIR") or cls.dir).absolute(),
            suite=value("SUITE") or cls.suite,
            extra=tuple(sorted(filter(None, value("EXTRA").split(",")))),
        )

    # ------------------------------------------------------------ folders
    @property
    def hosts(self) -> Path:
        """The files of the running testbed, which `down` removes."""
        return self.dir / "hosts"

    @property
    def cache(self) -> Path:
        """The built root file systems, shared by testbeds of all names; `down` keeps them."""
        return (SHARED if self.dir == Settings.dir else self.dir) / "cache"

    @property
    def base(self) -> Path:
        """A link to the root file system below every disk of this testbed."""
        return self.hosts / "base"

    # ------------------------------------------------------------ hosts
    def node(self, name: str) -> Node:
        number = FIRST_ADDRESS + int(name.removeprefix("node"))
        return Node(
            name=name,
            address=f"{NET}.{number}",
            mac=f"02:00:00:00:01:{number:02x}",
            gateway=CONTROL_ADDRESS,
            folder=self.hosts / name,
        )

    def all_nodes(self) -> list[Node]:
        return [self.node(f"node{i}") for i in range(self.nodes)]

    # ------------------------------------------------------------ the record
    @property
    def record(self) -> Path:
        return self.hosts / "testbed.json"

    def write_record(self) -> None:
        """Store the settings with the hosts, so that later commands need not repeat them."""
        self.hosts.mkdir(parents=True, exist_ok=True)
        saved = {k: v for k, v in asdict(self).items() if k != "dir"}
        self.record.write_text(json.dumps(saved, indent=2) + "\n")

    def recorded(self) -> Settings | None:
        """Return the settings of the running testbed in this folder, if there is one."""
        if not self.record.exists():
            return None
        saved = json.loads(self.record.read_text())
        return Settings(
            dir=self.dir,
            nodes=saved["nodes"],
            suite=saved["suite"],
            extra=tuple(saved["extra"]),
            bind_ro=tuple(saved["bind_ro"]),
            shared=tuple(saved.get("shared", ())),
            layers=tuple(saved.get("layers", ())),
        )
