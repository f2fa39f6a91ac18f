"""Reading an inventory through Ansible itself, with errors that name file and line."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftcluster.errors import FtclusterError, InventoryError

HEAD_GROUP = "head"
# What ansible-playbook takes and ansible-inventory needs as well: they decide who is in.
INVENTORY_OPTIONS = ("--limit", "--vault-password-file", "--vault-id")


@dataclass(frozen=True)
class Inventory:
    """The hosts of an inventory.

    Attributes:
        path: the absolute path of the inventory.
        hosts: host names in the inventory's order, the head first.
    """

    path: Path
    hosts: tuple[str, ...]

    @property
    def head(self) -> str:
        """The first host of group `head`, or else the first host."""
        return self.hosts[0]


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


def read_inventory(path: Path, options: Sequence[str] = ()) -> Inventory:
    """Read any inventory that Ansible reads: INI, YAML, a folder, a script.

    Args:
        path: the inventory.
        options: further arguments of ansible-inventory (`--limit`, vault options).

    Raises:
        InventoryError: it does not exist, cannot be parsed (with file and line) or has no host.
    """
    if not path.exists():
        raise InventoryError(
            f"inventory {path} does not exist",
            "write one host a line: node1 ansible_host=10.0.0.11 ansible_user=ubuntu",
        )
    environment = os.environ | {
        "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true",
        "ANSIBLE_NOCOLOR": "true",
    }
    process = subprocess.run(
        [program("ansible-inventory"), "-i", str(path), "--list", *options],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode != 0:
        raise _parse_error(path, process.stderr)
    hosts = _hosts_in_order(json.loads(process.stdout))
    if not hosts:
        limited = f" that {' '.join(options)} leaves" if options else ""
        raise InventoryError(
            f"inventory {path} has no host{limited}",
            "write one host a line: node1 ansible_host=10.0.0.11 ansible_user=ubuntu",
        )
    return Inventory(path=path.absolute(), hosts=hosts)


def _hosts_in_order(listing: dict[str, Any]) -> tuple[str, ...]:
    """Hosts of ansible-inventory's listing, depth first as Ansible orders them, the head first."""

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
