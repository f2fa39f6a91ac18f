"""Reading an inventory through Ansible itself, with errors that name file and line."""

import ipaddress
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from ftcluster.errors import FtclusterError, InventoryError

HEAD_GROUP = "head"
HOSTS_VARIABLE = "ftcluster_hosts"
NAME = re.compile(r"\w[\w.-]*")  # of a host
# What ansible-playbook takes and ansible-inventory needs as well: they decide who is in.
INVENTORY_OPTIONS = ("--extra-vars", "--vault-password-file", "--vault-id")


@dataclass(frozen=True)
class Inventory:
    """The hosts of one inventory, or of several that are read together.

    Attributes:
        paths: their absolute paths, in the order in which Ansible reads them.
        hosts: names of the hosts that are addressed, in the inventory's order, the head first.
        cluster: names of all hosts of the cluster, also of those that `--limit` leaves out.
        pattern: which hosts the cluster has, where that is not all: a pattern of Ansible.
    """

    paths: tuple[Path, ...]
    hosts: tuple[str, ...]
    cluster: tuple[str, ...]
    pattern: str = ""

    def in_order(self, names: Sequence[str]) -> "Inventory":
        """The same, with the cluster's hosts as a playbook names them, the head first."""
        addressed = set(self.hosts)
        hosts = tuple(name for name in names if name in addressed)
        return replace(self, hosts=hosts, cluster=tuple(names))

    @property
    def name(self) -> str:
        """The inventories for a person."""
        return ", ".join(map(str, self.paths))

    @property
    def head(self) -> str:
        """The cluster's first host of group `head`, or else its first host."""
        return self.cluster[0]


def program(name: str) -> str:
    """The path of an Ansible program, first beside this Python.

    Raises:
        FtclusterError: it is not installed.
    """
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        raise FtclusterError(f"{name} is not installed beside {sys.executable} nor on PATH")
    return found


def read_inventory(
    paths: Sequence[Path], options: Sequence[str] = (), remembered: str = ""
) -> Inventory:
    """Read any inventories that Ansible reads: INI, YAML, folders, scripts.

    Args:
        paths: the inventories.
        options: arguments of ansible-playbook.
        remembered: the pattern of the cluster's hosts where neither `options` nor the inventory
            has one.

    Raises:
        InventoryError: one does not exist or cannot be parsed (with file and line), no host is
            left, or ftcluster_hosts is not one pattern.
    """
    for path in paths:
        if not path.exists():
            raise InventoryError(
                f"inventory {path} does not exist",
                "write one host a line: node1 ansible_host=10.0.0.11 ansible_user=ubuntu",
            )
    given = list(pairwise(options))
    more = [part for pair in given if pair[0] in INVENTORY_OPTIONS for part in pair]
    listing = _listing(paths, more)
    pattern = _pattern(listing, paths) or remembered
    everyone = _hosts_in_order(listing)
    where = ", ".join(map(str, paths))
    if not everyone:
        raise InventoryError(
            f"inventory {where} has no host",
            "write one host a line: node1 ansible_host=10.0.0.11 ansible_user=ubuntu",
        )
    cluster = _hosts_in_order(_listing(paths, [*more, "--limit", pattern])) if pattern else everyone
    if not cluster:
        raise InventoryError(
            f"{HOSTS_VARIABLE}={pattern} names no host of inventory {where}",
            f"its groups are {', '.join(_groups(listing))}",
        )
    _refuse_patterns(where, cluster)
    limits = [value for name, value in given if name == "--limit"]
    hosts = cluster
    if limits:
        left = set(_hosts_in_order(_listing(paths, [*more, "--limit", limits[-1]])))
        hosts = tuple(name for name in cluster if name in left)
        if not hosts:
            raise InventoryError(
                f"--limit {limits[-1]} leaves no host of the cluster",
                f"it has {', '.join(cluster)}",
            )
    return Inventory(tuple(path.absolute() for path in paths), hosts, cluster, pattern)


def _listing(paths: Sequence[Path], options: Sequence[str]) -> dict[str, Any]:
    """What ansible-inventory says."""
    environment = os.environ | {
        "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true",
        "ANSIBLE_NOCOLOR": "true",
    }
    sources = [part for path in paths for part in ("-i", str(path))]
    process = subprocess.run(
        [program("ansible-inventory"), *sources, "--list", *options],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode != 0:
        if len(paths) > 1:
            for path in paths:  # its error names the one that is wrong
                _listing([path], options)
        raise _parse_error(paths[0], process.stderr)
    listing: dict[str, Any] = json.loads(process.stdout)
    return listing


def _pattern(listing: dict[str, Any], paths: Sequence[Path]) -> str:
    """The one pattern that variables have, or an empty string.

    It may be a variable of some hosts only, as of those that it names.
    """
    found = {
        json.dumps(variables[HOSTS_VARIABLE])
        for variables in listing["_meta"]["hostvars"].values()
        if HOSTS_VARIABLE in variables
    }
    if not found:
        return ""
    pattern = json.loads(min(found))
    where = ", ".join(map(str, paths))
    if len(found) > 1:
        raise InventoryError(
            f"inventory {where} has several {HOSTS_VARIABLE}: {', '.join(sorted(found))}",
            "set it once, for all hosts; of several clusters, each has its own: "
            f"-e {HOSTS_VARIABLE}=PATTERN",
        )
    if not isinstance(pattern, str) or not pattern or "{{" in pattern or "{%" in pattern:
        raise InventoryError(
            f"{HOSTS_VARIABLE} is {found.pop()}, not a pattern of hosts",
            "write the name of a group, or as in 'xeons:!xeon3'",
        )
    return pattern


def _groups(listing: dict[str, Any]) -> list[str]:
    return sorted(set(listing) - {"_meta", "all", "ungrouped"}) or ["none"]


def _refuse_patterns(where: str, hosts: Sequence[str]) -> None:
    """Raise where a host is called what plays, ssh_config or a hostfile take for something else."""
    odd = [name for name in hosts if not (NAME.fullmatch(name) or is_address(name))]
    if odd:
        raise InventoryError(
            f"inventory {where}: {', '.join(map(ascii, odd))}: a host's name has letters, digits, "
            "dots, dashes and underscores",
            "give it such a name, and its address with ansible_host=ADDRESS",
        )


def is_address(text: str) -> bool:
    """Whether a text is an IPv4 or IPv6 address."""
    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return False


def _hosts_in_order(listing: dict[str, Any]) -> tuple[str, ...]:
    """Hosts of ansible-inventory's listing, depth first, the head first.

    What order they have in the files, the listing does not say; playbooks do.
    """

    def walk(group: str) -> list[str]:
        members: dict[str, Any] = listing.get(group, {})
        found = list(members.get("hosts", []))
        for child in members.get("children", []):
            found += walk(child)
        return found

    return tuple(dict.fromkeys([*walk(HEAD_GROUP), *walk("all")]))


def _parse_error(path: Path, stderr: str) -> InventoryError:
    """Ansible's own words for what is wrong, with the line found again where they lack it."""
    reasons = [
        line.split("Failed to parse inventory: ", 1)[1]
        for line in stderr.splitlines()
        if "Failed to parse inventory: " in line
    ]
    yaml_reasons = [
        line.split("YAML parsing failed: ", 1)[1]
        for line in stderr.splitlines()
        if "YAML parsing failed: " in line
    ]
    if path.suffix in (".yml", ".yaml", ".json") and yaml_reasons:
        where = next(
            (
                line.removeprefix("Origin: ").strip().rsplit(":", 1)[0]
                for line in stderr.splitlines()
                if line.startswith(f"Origin: {path.absolute()}:")
            ),
            str(path),
        )
        where = where.replace(str(path.absolute()), str(path))
        return InventoryError(f"{where}: {yaml_reasons[0]}")
    line_number = _ini_line(path) if path.is_file() else None
    where = f"{path}:{line_number}" if line_number else str(path)
    if reasons:
        return InventoryError(f"{where}: {reasons[0]}", _ini_hint(path, line_number))
    words = [line for line in stderr.splitlines() if line.strip()]
    return InventoryError(f"{where}: {words[-1] if words else 'ansible-inventory failed'}")


def _ini_hint(path: Path, line_number: int | None) -> str:
    if not line_number:
        return ""
    return f"the line is: {path.read_text(errors='replace').splitlines()[line_number - 1].strip()}"


def _ini_line(path: Path) -> int | None:
    """The line at which Ansible's INI parser gives up; its message since 2.19 leaves it out."""
    try:
        from ansible._internal._datatag._tags import Origin
        from ansible.inventory.data import InventoryData
        from ansible.plugins.inventory.ini import InventoryModule

        module = InventoryModule()
        module.inventory = InventoryData()
        module._origin = Origin(path=str(path.absolute()), line_num=0)
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except (ImportError, AttributeError, OSError):
        return None  # an ansible-core whose inside is different: the message does without
    try:
        module._parse(lines)
    except Exception:
        return module._origin.line_num or None
    return None
