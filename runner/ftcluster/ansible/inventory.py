"""Reads inventories with ansible-inventory; errors name file and line."""

import ipaddress
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from ftcluster.ansible.private_ansible import ini_line
from ftcluster.errors import FtclusterError, InventoryError
from ftcluster.paths import bundled
from ftcluster_common.given_files import parse_json

HEAD_GROUP = "head"
OWN_GROUP = "ftcluster"  # an inventory that has it says which hosts the cluster has
NO_GROUPS = {"_meta", "all", "ungrouped"}
LOCALHOST = "localhost"
HOSTS_VARIABLE = "ftcluster_hosts"
EXAMPLE = "write one host a line: node1 ansible_host=10.0.0.11 ansible_user=ubuntu"
NAME = re.compile(r"\w[\w.-]*")  # of a host
# those of ansible-playbook that ansible-inventory needs, too: they can decide which hosts there are
INVENTORY_OPTIONS = ("--extra-vars", "--vault-password-file", "--vault-id")
# variables of hosts by which ssh connects whatever key the host shows
KEY_CHECKING = ("ansible_host_key_checking", "ansible_ssh_host_key_checking")
SSH_OPTIONS = ("ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args")
UNCHECKED = re.compile(r"StrictHostKeyChecking[ =]+(?:no|off)\b", re.IGNORECASE)
NO = ("no", "n", "f", "false", "off", "0", "0.0")  # Ansible's words


@dataclass(frozen=True)
class Inventory:
    """The hosts of one inventory, or of several that are read together.

    Attributes:
        paths: their absolute paths, in the order in which Ansible reads them.
        hosts: names of the hosts without those that `--limit` leaves out, the head first.
        cluster: names of all hosts of the cluster, the head first.
        pattern: Ansible's pattern of the cluster's hosts, or "" for all.
        groups: hosts by group, where nothing says which of these are the cluster; else empty.
        unchecked: variables by which host keys are not checked, each with its hosts.
    """

    paths: tuple[Path, ...]
    hosts: tuple[str, ...]
    cluster: tuple[str, ...]
    pattern: str = ""
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unchecked: tuple[str, ...] = ()

    def in_order(self, names: Sequence[str]) -> "Inventory":
        """The same, with the cluster's hosts in a playbook's order, the head first."""
        addressed = set(self.hosts)
        hosts = tuple(name for name in names if name in addressed)
        return replace(self, hosts=hosts, cluster=tuple(names))

    @property
    def name(self) -> str:
        """The inventories, for messages."""
        return ", ".join(map(str, self.paths))

    @property
    def head(self) -> str:
        """The cluster's first host of group `head`, or else its first host."""
        return self.cluster[0]


def program(name: str) -> str:
    """The path of an Ansible program: beside this Python, or on PATH.

    Raises:
        FtclusterError: it is not installed.
    """
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        raise FtclusterError(f"{name} is not installed beside {sys.executable} nor on PATH")
    return found


def inventory_path(given: str) -> Path:
    """The path of an inventory that a user names: `localhost` is the bundled one."""
    ours = bundled("inventory") / f"{LOCALHOST}.ini"
    return ours if given == LOCALHOST and not Path(given).exists() else Path(given)


def read_inventory(
    paths: Sequence[Path], options: Sequence[str] = (), remembered: str = ""
) -> Inventory:
    """Read inventories: INI, YAML, folders, scripts.

    Args:
        remembered: the pattern where neither `options` nor the inventory has one; without it, the
            cluster is the group `ftcluster` where there is one, else all hosts.

    Raises:
        InventoryError: one does not exist or cannot be parsed (with file and line), no host is
            left, or ftcluster_hosts is not one pattern.
    """
    for path in paths:
        if not path.exists():
            raise InventoryError(f"inventory {path} does not exist", EXAMPLE)
    given = list(pairwise(options))
    more = [part for pair in given if pair[0] in INVENTORY_OPTIONS for part in pair]
    listing = _listing(paths, more)
    where = ", ".join(map(str, paths))
    everyone = _hosts_in_order(listing)
    own = OWN_GROUP if _members(listing, OWN_GROUP) else ""
    pattern = _pattern(listing, where) or remembered or own
    if not everyone:
        raise InventoryError(f"inventory {where} has no host", EXAMPLE)
    cluster = _hosts_in_order(_listing(paths, [*more, "--limit", pattern])) if pattern else everyone
    if not cluster:
        groups = sorted(set(listing) - NO_GROUPS) or ["none"]
        raise InventoryError(
            f"{HOSTS_VARIABLE}={pattern} names no host of inventory {where}",
            f"its groups are {', '.join(groups)}",
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
    unchecked = _unchecked(listing["_meta"]["hostvars"], hosts)
    absolute = tuple(path.absolute() for path in paths)
    unclear = {} if pattern else _unclear(listing)
    return Inventory(absolute, hosts, cluster, pattern, unclear, unchecked)


def _unchecked(variables: Mapping[str, Mapping[str, Any]], hosts: Sequence[str]) -> tuple[str, ...]:
    """The variables by which Ansible does not check the keys of hosts."""
    found: dict[str, list[str]] = {}
    for host in hosts:
        for name, value in variables.get(host, {}).items():
            if name in KEY_CHECKING and str(value).lower() in NO:
                found.setdefault(f"{name}={value}", []).append(host)
            for option in UNCHECKED.findall(str(value)) if name in SSH_OPTIONS else ():
                found.setdefault(f"{option} in {name}", []).append(host)
    return tuple(f"{what} ({', '.join(of)})" for what, of in found.items())


def _listing(paths: Sequence[Path], options: Sequence[str]) -> dict[str, Any]:
    """The output of ansible-inventory."""
    environment = os.environ | {
        "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true",
        "ANSIBLE_NOCOLOR": "true",
    }
    sources = [part for path in paths for part in ("-i", str(path))]
    process = subprocess.run(
        [program("ansible-inventory"), *sources, "--list", *options],
        env=environment,
        capture_output=True,
        encoding="utf-8",
        errors="replace",  # what a script prints
        check=False,
    )
    if process.returncode != 0:
        if len(paths) > 1:
            for path in paths:  # only that one's error names it
                _listing([path], options)
        raise _parse_error(paths[0], process.stderr)
    try:
        listing: dict[str, Any] = parse_json(process.stdout)
    except ValueError as error:
        where = ", ".join(map(str, paths))
        raise InventoryError(
            f"inventory {where}: what ansible-inventory makes of it cannot be read: {error}"
        ) from error
    return listing


def _pattern(listing: dict[str, Any], where: str) -> str:
    """The pattern in the hosts' variables, or "". Not all hosts need to have the variable."""
    found = {
        json.dumps(variables[HOSTS_VARIABLE])
        for variables in listing["_meta"]["hostvars"].values()
        if HOSTS_VARIABLE in variables
    }
    if not found:
        return ""
    pattern = json.loads(min(found))
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


def _refuse_patterns(where: str, hosts: Sequence[str]) -> None:
    """Raise for names that mean something else in plays, ssh_config or a hostfile."""
    odd = [name for name in hosts if not (NAME.fullmatch(name) or is_address(name))]
    if odd:
        raise InventoryError(
            f"inventory {where}: {', '.join(map(ascii, odd))}: a host's name has letters, digits, "
            "dots, dashes and underscores",
            "give it such a name, and its address with ansible_host=ADDRESS",
        )


def pattern_of(names: Sequence[str]) -> str:
    """Ansible's pattern of hosts; one with a colon, as IPv6 addresses have, is split without comma.

    >>> pattern_of(["node1", "node2"]), pattern_of(["!fd00::1"])
    ('node1,node2', '!fd00::1,')
    """
    return ",".join(names) + ("," if len(names) == 1 and ":" in names[0] else "")


def is_address(text: str) -> bool:
    """Whether a text is an IPv4 or IPv6 address."""
    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return False


def _hosts_in_order(listing: dict[str, Any]) -> tuple[str, ...]:
    """Hosts of a listing, depth first, the head first; the files' order is not known."""
    return tuple(dict.fromkeys([*_members(listing, HEAD_GROUP), *_members(listing, "all")]))


def _members(listing: dict[str, Any], group: str) -> list[str]:
    """The hosts of a group and of those below it."""
    members: dict[str, Any] = listing.get(group, {})
    found = list(members.get("hosts", []))
    for child in members.get("children", []):
        found += _members(listing, child)
    return found


def _unclear(listing: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """The hosts of each group, unless each group has all hosts, but for a head of its own.

    Groups of one cluster and of a whole company look alike: racks, or databases and web servers.
    """
    names = (set(listing) | {"ungrouped"}) - {"_meta", "all", HEAD_GROUP}
    groups = {name: tuple(dict.fromkeys(_members(listing, name))) for name in sorted(names)}
    head = set(_members(listing, HEAD_GROUP))
    others = set(_members(listing, "all")) - head
    odd = [
        group
        for group in groups.values()
        if group and not (others <= set(group) or set(group) <= head)
    ]
    return {name: one for name, one in groups.items() if one} if odd else {}


def _parse_error(path: Path, stderr: str) -> InventoryError:
    """Ansible's message, with the line where that lacks it."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]

    def after(marker: str) -> str:
        return next((line.partition(marker)[2] for line in lines if marker in line), "")

    script = after("Failed to parse inventory with 'script' plugin: ")
    if script:
        said = _next(lines, "Standard error from inventory script:")
        reason = "it printed no JSON" if "JSON" in script else script.rstrip(".")
        hint = f"it says: {said}" if said else f"look at its output: {path} --list"
        return InventoryError(f"{path}, a script: {reason}", hint)
    reason = after("YAML parsing failed: ")
    if path.suffix in (".yml", ".yaml", ".json") and reason:
        number = after(f"Origin: {path.absolute()}:").partition(":")[0]
        return InventoryError(f"{path}:{number}: {reason}" if number else f"{path}: {reason}")
    reason = after("Failed to parse inventory: ") or (lines or ["ansible-inventory failed"])[-1]
    line = ini_line(path) if path.is_file() else None
    if not line:
        return InventoryError(f"{path}: {reason}")
    text = path.read_text(errors="replace").splitlines()[line - 1].strip()
    if text.startswith("[") and "]" not in text:
        reason = "the name of a group lacks its ]"
    return InventoryError(f"{path}:{line}: {reason}", f"the line is: {text}")


def _next(lines: Sequence[str], line: str) -> str:
    """The line after another one, or ""."""
    return next((second for first, second in pairwise(lines) if first == line), "")
