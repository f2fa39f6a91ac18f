"""A report about hosts that users can share: it contains no names, addresses, keys or secrets.

Hosts describe themselves with `playbooks/files/system_report.sh`, whose output contains no names,
addresses, keys or secrets. Findings of `check` may contain such data, so this module masks all
strings.
"""

import ipaddress
import json
import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ansible_collections.ftcluster.cluster.plugins.plugin_utils.answers import answers

from ftcluster.ansible.answers import SYSTEM, take
from ftcluster.ansible.failures import failed_without_task
from ftcluster.ansible.playbook import TaskEvent
from ftcluster.ansible.playbooks import ClusterVariables, SystemReport
from ftcluster.errors import Interrupted, UsageError
from ftcluster.progress.state import SetupProgress
from ftcluster.progress.view import View
from ftcluster.provision.check import Found
from ftcluster.provision.stages import raise_timeout, show_playbook
from ftcluster_common import __version__

FORMAT = 1
TIME_LIMIT_SECONDS = 120  # a package manager can take a minute
# facts that do not reveal the host's owner
FACTS = (
    "os", "kernel", "libc", "machine", "cpu_model", "cpu_generation", "cpu_flags", "amx", "threads",
    "cores", "cpu_quota", "sockets", "numa_nodes", "numa", "memory_bytes", "free_bytes", "prefix",
    "python", "pythons", "tcmalloc", "host_firewall", "firewall_rules", "local_ports", "current",
    "locks_memory", "is_root", "can_become_root", "no_root_because", "root_refused", "ssh_port",
)  # fmt: skip
# common accounts of system images, which identify nobody
COMMON = {
    "root", "admin", "almalinux", "azureuser", "centos", "cloud-user", "debian", "ec2-user", "ops",
    "fedora", "ftcluster", "localhost", "opc", "rocky", "ubuntu", "vagrant",
}  # fmt: skip
IPV4 = r"(?<![\w.-])\d{1,3}(?:\.\d{1,3}){3}(?![\w-])"
IPV6 = r"[0-9A-Fa-f.]*:[0-9A-Fa-f.:]*:[0-9A-Fa-f.:]*"  # times and hardware addresses match too
KEYS = r"SHA256:[\w+/=]{20,}|AAAA[\w+/=]{20,}"
MARKED = re.compile(f"(?P<address>{IPV4}|{IPV6})|(?P<key>{KEYS})")


def refuse_existing(path: Path) -> None:
    """Raise an error if a file would be replaced.

    Raises:
        UsageError: the file exists.
    """
    if path.exists():
        raise UsageError(f"{path} exists already", "name another file for --system-report")


def read_systems(found: Found, options: Sequence[str], view: View) -> dict[str, str]:
    """Return the system description of each checked host that responds, by host name.

    Raises:
        FtclusterError: Ansible could not start, or took too long.
        Interrupted: the user stopped the command.
    """
    systems: dict[str, str] = {}

    def on_event(event: TaskEvent) -> None:
        if answer := take(SYSTEM, event):
            (systems[event.host],) = answer

    progress, variables = SetupProgress(), ClusterVariables(found.inventory.pattern or None)
    outcome = show_playbook(
        SystemReport(), found.inventory, variables, options, view, progress, on_event,
        TIME_LIMIT_SECONDS,
    )  # fmt: skip
    view.close()
    raise_timeout("the report", outcome, progress, TIME_LIMIT_SECONDS)
    if outcome.state == "stopped":
        raise Interrupted("stopped: nothing was written")
    if outcome.state == "failed" and not outcome.failures:
        raise failed_without_task("the report", outcome.output)
    return systems


def report(found: Found, checked: Mapping[str, Any], systems: Mapping[str, str]) -> dict[str, Any]:
    """Return the report as a JSON document.

    Args:
        checked: document of `check --json`.
        systems: result of `read_systems`.
    """
    names = list(dict.fromkeys([*found.inventory.cluster, *found.facts, *systems]))
    aliases = {name: f"host{number}" for number, name in enumerate(names, start=1)}
    rows = {row["name"]: row for row in checked["hosts"]}
    hosts = [
        {
            "name": aliases[name],
            "system": answers(systems.get(name, "")),
            "facts": {key: found.facts.get(name, {}).get(key) for key in FACTS},
            "interfaces": [
                {key: nic.get(key) for key in ("driver", "speed_mbits", "mtu")}
                for nic in found.facts.get(name, {}).get("nics", [])
            ],
            **{key: rows.get(name, {}).get(key) for key in ("versions", "computes_with", "speed")},
        }
        for name in names
        if name in found.inventory.hosts or name in systems
    ]
    for name, facts in found.facts.items():
        aliases.setdefault(facts.get("hostname", ""), aliases[name])
        aliases.setdefault(facts.get("user", ""), "USER")
    document = {
        "format": FORMAT,
        "ftcluster": __version__,
        "control_node": {
            "python": platform.python_version(),
            "ansible_core": version("ansible-core"),
            "system": platform.platform(),
        },
        "state": checked["state"],
        "hosts": hosts,
        "problems": checked["problems"],
        "warnings": checked["warnings"],
    }
    masked: dict[str, Any] = mask(document, aliases)
    return masked


def mask(value: Any, aliases: Mapping[str, str]) -> Any:
    """Replace names in all strings of a value with aliases, and mask addresses and keys.

    >>> mask(["node7.example.org (10.1.2.3) is off"], {"node7": "host1"})
    ['host1 (ADDRESS) is off']
    """
    names = sorted((name for name in aliases if name and name not in COMMON), key=len)[::-1]
    pattern = "|".join(map(re.escape, names)) or r"(?!)"
    named = re.compile(rf"(?<![\w.-])({pattern})(\.[\w.-]*\w)?(?![\w-])", re.IGNORECASE)
    lower = {name.lower(): alias for name, alias in aliases.items()}

    def masked(data: Any) -> Any:
        if isinstance(data, str):
            text = named.sub(lambda match: lower[match[1].lower()], data)
            return MARKED.sub(_without, text)
        if isinstance(data, Mapping):
            return {key: masked(part) for key, part in data.items()}
        return [masked(part) for part in data] if isinstance(data, Iterable) else data

    return masked(value)


def _without(match: re.Match[str]) -> str:
    if match["key"]:
        return "KEY"
    text = match[0]
    for first, last in ((0, 0), (0, 1), (1, 0), (1, 1)):  # a colon may be punctuation
        inner = text[first : len(text) - last]
        try:
            address = ipaddress.ip_address(inner.rstrip("."))
        except ValueError:
            continue
        local = address.is_loopback or address.is_unspecified
        return text if local else text.replace(inner.rstrip("."), "ADDRESS")
    return re.sub(r"\b\w\w(:\w\w){5}\b", "ADDRESS", text)  # hardware address


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Write the report as a new file that others cannot read.

    Raises:
        OSError: the file cannot be written, or it exists.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(json.dumps(document, indent=1) + "\n")
