"""Reads inventories with ansible-inventory; errors name the file and the line."""

import ipaddress
import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from ftcluster.ansible.inventory_errors import (
    EXAMPLE,
    named,
    refuse_files,
    refuse_options,
    seen_by,
    unreadable,
    warnings,
    without_hosts,
)
from ftcluster.ansible.private_ansible import config_file
from ftcluster.ansible.processes import end_descendants
from ftcluster.ansible.programs import program, utf8_locale
from ftcluster.errors import InventoryError
from ftcluster.paths import bundled
from ftcluster.text.printable import printable
from ftcluster_common.given_files import parse_json

HEAD_GROUP = "head"
OWN_GROUP = "ftcluster"  # group that defines the cluster, if an inventory has it
NO_GROUPS = {"_meta", "all", "ungrouped"}
LOCALHOST = "localhost"
BUNDLED_LOCALHOST = bundled("inventory") / f"{LOCALHOST}.ini"
HOSTS_VARIABLE = "ftcluster_hosts"
NO_LIST = "name a file, not a list of hosts: write the hosts into a file, one per line"
MOST_SHOWN = 60  # maximum length of invalid output in a message
TIME_LIMIT_SECONDS = 300  # the inventory of a large cloud takes a minute
NAME = re.compile(r"\w[\w.-]*")  # valid names of hosts
# options of ansible-playbook that ansible-inventory needs too, because they can change the hosts
INVENTORY_OPTIONS = ("--extra-vars", "--vault-password-file", "--vault-id")
# variables of hosts that make ssh accept any host key
KEY_CHECKING = ("ansible_host_key_checking", "ansible_ssh_host_key_checking")
SSH_OPTIONS = ("ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args")
UNCHECKED = re.compile(r"StrictHostKeyChecking[ =]+(?:no|off)\b", re.IGNORECASE)
NO = ("no", "n", "f", "false", "off", "0", "0.0")  # Ansible's values for False


@dataclass(frozen=True)
class Inventory:
    """The hosts of an inventory, or of several merged inventories.

    Attributes:
        paths: absolute paths of the inventories, in the order in which Ansible reads them.
        hosts: names of the hosts that `--limit` selects, the head first.
        cluster: names of all hosts of the cluster, the head first.
        pattern: Ansible's pattern of the cluster's hosts, or "" for all hosts.
        groups: hosts by group if it is unclear which hosts belong to the cluster; otherwise empty.
        unchecked: variables that disable host key checking, each with its hosts.
    """

    paths: tuple[Path, ...]
    hosts: tuple[str, ...]
    cluster: tuple[str, ...]
    pattern: str = ""
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unchecked: tuple[str, ...] = ()

    def in_order(self, names: Sequence[str]) -> "Inventory":
        """Return a copy whose cluster has its hosts in the order of `names`, the head first."""
        addressed = set(self.hosts)
        hosts = tuple(name for name in names if name in addressed)
        return replace(self, hosts=hosts, cluster=tuple(names))

    @property
    def name(self) -> str:
        """The paths of the inventories, for messages."""
        return named(self.paths)

    @property
    def head(self) -> str:
        """The head: the first host of the group `head`; without it, the cluster's first host."""
        return self.cluster[0]


def inventory_path(given: str) -> Path:
    """Return the path of an inventory that a user names; `localhost` is the bundled inventory."""
    ours = given == LOCALHOST and not Path(given).exists()
    return BUNDLED_LOCALHOST if ours else Path(given)


def read_inventory(
    paths: Sequence[Path], options: Sequence[str] = (), remembered: str = ""
) -> Inventory:
    """Read inventories: INI, YAML, folders, scripts.

    Args:
        paths: paths of the inventories.
        options: arguments of ansible-playbook; --limit and -e can change the hosts.
        remembered: pattern of the cluster's hosts if neither `options` nor the inventory sets a
            pattern. If this is empty too, the cluster is the group `ftcluster`, or all hosts if
            there is no such group.

    Raises:
        InventoryError: an inventory does not exist, is a pipe or cannot be parsed, no host remains,
            or ftcluster_hosts is not a single pattern.
        UsageError: Ansible would not accept the value of an option.
    """
    for path in paths:
        if not path.exists():
            hint = NO_LIST if "," in str(path) else EXAMPLE
            raise InventoryError(f"inventory {path} does not exist", hint)
    refuse_files(paths)
    pairs = list(pairwise(options))
    refuse_options(pairs)
    more = [part for pair in pairs if pair[0] in INVENTORY_OPTIONS for part in pair]
    listing, warned = _listing(paths, more)
    where = named(paths)
    everyone = _hosts_in_order(listing)
    own_group = OWN_GROUP if _members(listing, OWN_GROUP) else ""
    pattern = _pattern(listing, where) or remembered or own_group
    if not everyone:
        raise without_hosts(paths, warned)
    cluster = everyone
    if pattern:
        cluster = _hosts_in_order(_listing(paths, [*more, "--limit", pattern])[0])
    if not cluster:
        groups = sorted(set(listing) - NO_GROUPS) or ["none"]
        raise InventoryError(
            f"{HOSTS_VARIABLE}={pattern} matches no host in inventory {where}",
            f"the inventory's groups are {', '.join(groups)}",
        )
    _refuse_patterns(where, cluster)
    limits = [value for name, value in pairs if name == "--limit"]
    hosts = cluster
    if limits:
        selected = set(_hosts_in_order(_listing(paths, [*more, "--limit", limits[-1]])[0]))
        hosts = tuple(name for name in cluster if name in selected)
        if not hosts:
            raise InventoryError(
                f"--limit {limits[-1]} selects no host of the cluster",
                f"the hosts of the cluster are {', '.join(cluster)}",
            )
    unchecked = _unchecked(listing["_meta"]["hostvars"], hosts)
    absolute = tuple(path.absolute() for path in paths)
    unclear = {} if pattern else _unclear(listing)
    return Inventory(absolute, hosts, cluster, pattern, unclear, unchecked)


def _unchecked(variables: Mapping[str, Mapping[str, Any]], hosts: Sequence[str]) -> tuple[str, ...]:
    """Return the variables that disable host key checking, each with its hosts."""
    unchecked: dict[str, list[str]] = {}
    for host in hosts:
        for name, value in variables.get(host, {}).items():
            if name in KEY_CHECKING and str(value).lower() in NO:
                unchecked.setdefault(f"{name}={value}", []).append(host)
            for option in UNCHECKED.findall(str(value)) if name in SSH_OPTIONS else ():
                unchecked.setdefault(f"{option} in {name}", []).append(host)
    return tuple(f"{what} ({', '.join(of)})" for what, of in unchecked.items())


def _listing(paths: Sequence[Path], options: Sequence[str]) -> tuple[dict[str, Any], str]:
    """Return the parsed output of ansible-inventory, and its warnings."""
    config_file()  # raises if the file belongs to another user
    environment = {
        **os.environ,
        **utf8_locale(),
        "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true",
        "ANSIBLE_NOCOLOR": "true",
    }
    sources = [part for path in paths for part in ("-i", str(path))]
    with subprocess.Popen(
        [program("ansible-inventory"), *sources, "--list", *options],
        env=environment,
        stdin=subprocess.DEVNULL,  # a script or plugin must not ask questions
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",  # scripts can print any bytes
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=TIME_LIMIT_SECONDS)
        except BaseException as error:
            end_descendants()  # a script would continue to run otherwise
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise InventoryError(
                f"inventory {named(paths)}: ansible-inventory did not finish within "
                f"{error.timeout:g} s; a script or service that the inventory uses may be hanging",
                seen_by(paths),
            ) from None
    if process.returncode != 0:
        raise unreadable(paths, stderr, process.returncode)
    try:
        listing: dict[str, Any] = parse_json(stdout)
    except ValueError as error:
        raise InventoryError(
            f"inventory {named(paths)}: ansible-inventory must print JSON, but printed "
            f"{printable(stdout[:MOST_SHOWN])!a}",
            "a plugin or script of the inventory printed something to stdout, or exited; "
            f"{seen_by(paths)}",
        ) from error
    return listing, warnings(stderr)


def _pattern(listing: dict[str, Any], where: str) -> str:
    """Return the pattern in the variable ftcluster_hosts, or ""; some hosts may lack it."""
    patterns = {
        json.dumps(variables[HOSTS_VARIABLE])
        for variables in listing["_meta"]["hostvars"].values()
        if HOSTS_VARIABLE in variables
    }
    if not patterns:
        return ""
    pattern = json.loads(min(patterns))
    if len(patterns) > 1:
        raise InventoryError(
            f"inventory {where} sets {HOSTS_VARIABLE} to several values: "
            f"{', '.join(sorted(patterns))}",
            "set the variable only once, for all hosts; if the inventory contains several "
            f"clusters, set it on the command line: -e {HOSTS_VARIABLE}=PATTERN",
        )
    if not isinstance(pattern, str) or not pattern or "{{" in pattern or "{%" in pattern:
        raise InventoryError(
            f"{HOSTS_VARIABLE} must be a pattern of hosts, got {patterns.pop()}",
            "write the name of a group, or a pattern like 'xeons:!xeon3'",
        )
    return pattern


def _refuse_patterns(where: str, hosts: Sequence[str]) -> None:
    """Refuse names that would be read as a pattern in plays, ssh_config or a hostfile."""
    odd = [name for name in hosts if not (NAME.fullmatch(name) or is_address(name))]
    if odd:
        raise InventoryError(
            f"inventory {where}: {', '.join(map(ascii, odd))}: names of hosts may contain only "
            "letters, digits, dots, dashes and underscores",
            "rename the host, and set its address with ansible_host=ADDRESS",
        )


def pattern_of(names: Sequence[str]) -> str:
    """Return Ansible's pattern for hosts; a single IPv6 address gets a trailing comma.

    Without the comma, Ansible would split the address at its colons.

    >>> pattern_of(["node1", "node2"]), pattern_of(["!fd00::1"])
    ('node1,node2', '!fd00::1,')
    """
    return ",".join(names) + ("," if len(names) == 1 and ":" in names[0] else "")


def is_address(text: str) -> bool:
    """Return True if a string is an IPv4 or IPv6 address."""
    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return False


def _hosts_in_order(listing: dict[str, Any]) -> tuple[str, ...]:
    """Return the hosts of a listing: the head first, then the others group by group."""
    return tuple(dict.fromkeys([*_members(listing, HEAD_GROUP), *_members(listing, "all")]))


def _members(listing: dict[str, Any], group: str) -> list[str]:
    """Return the hosts of a group and of its child groups."""
    members: dict[str, Any] = listing.get(group, {})
    hosts = list(members.get("hosts", []))
    for child in members.get("children", []):
        hosts += _members(listing, child)
    return hosts


def _unclear(listing: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the hosts of each group, or {} if it is clear that all hosts belong to the cluster.

    It is clear if every group, except the group of the head, contains all hosts. Otherwise
    ftcluster cannot distinguish racks of one cluster from a company's databases and web servers.
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
