"""Finds why ssh refuses the keys of hosts, and stores the keys that the user accepts.

ssh itself checks and stores keys, because only ssh can apply its configuration: jump hosts, ports,
aliases and hashed names.
"""

import os
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftcluster.ansible.answers import SSH_WAY, take
from ftcluster.ansible.failures import failed_without_task
from ftcluster.ansible.inventory import Inventory
from ftcluster.ansible.playbook import PlaybookOutcome, TaskEvent, run_playbook
from ftcluster.ansible.playbooks import ASK_KEY, CHECK_KEY, HostKeys
from ftcluster.ansible.scratch import private_folder
from ftcluster.ansible.settings import users_ssh_args
from ftcluster.ansible.ssh_words import CHANGED, REFUSED, UNKNOWN
from ftcluster.errors import FtclusterError

TIME_LIMIT_SECONDS = 120
PASSWORDS = ("--become-password-file", "--connection-password-file")
ACCEPT = "--accept-new-host-keys"
WAYS = (
    "nothing was changed; compare the fingerprints with the output of `ssh-keygen -lf` for "
    "/etc/ssh/ssh_host_*_key.pub on each host; then connect to each host once with ssh, or add the "
    f"keys with ssh-keyscan, or run setup or check with {ACCEPT}"
)


@dataclass(frozen=True)
class Met:
    """A host whose key is in none of ssh's known_hosts files.

    Attributes:
        host: name in the inventory.
        address: address that ssh connects to.
        lines: known_hosts lines that ssh would store.
        fingerprint: type and SHA-256 of the key, as `ssh-keygen -l` prints them.
        file: file that ssh would store the key in.
    """

    host: str
    address: str
    lines: str
    fingerprint: str
    file: Path

    @property
    def line(self) -> str:
        """The host, its address and its key, as one line of a list."""
        return f"{self.host}: {self.address}, {self.fingerprint}"


@dataclass
class Keys:
    """The keys of some hosts, as ssh reports them.

    Attributes:
        unknown: unknown hosts with their keys.
        refused: reason for refusing other hosts, by name.
    """

    unknown: list[Met] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


def refused_hosts(outcome: PlaybookOutcome) -> tuple[str, ...]:
    """Return the hosts whose keys ssh refused in a playbook."""
    marks = (UNKNOWN, CHANGED, REFUSED)
    refused = [failure.host for failure in outcome.failures if failure.message.startswith(marks)]
    return tuple(dict.fromkeys(refused))


def ask_hosts(inventory: Inventory, hosts: Sequence[str], options: Sequence[str]) -> Keys:
    """Get the keys of some hosts from ssh, over Ansible's connections. No command runs on them.

    Args:
        options: arguments of ansible-playbook.

    Raises:
        FtclusterError: Ansible could not start.
    """
    ways: dict[str, Mapping[str, Any]] = {}
    checked: dict[str, str] = {}
    asked: dict[str, str] = {}

    def on_event(event: TaskEvent) -> None:
        if way := take(SSH_WAY, event):
            (ways[event.host],) = way
        elif event.kind in ("failed", "unreachable", "ok", "changed"):
            {CHECK_KEY: checked, ASK_KEY: asked}.get(event.task, {})[event.host] = event.message

    with private_folder() as folder:
        playbook = HostKeys(list(hosts), str(folder), users_ssh_args())
        outcome = run_playbook(
            playbook.qualified,
            inventory.paths,
            playbook.variables(),
            on_event,
            options=_without_passwords(options),
            time_limit_seconds=TIME_LIMIT_SECONDS,
        )
        keys = Keys()
        for host in [name for name in inventory.hosts if name in hosts]:
            if host not in ways:
                raise failed_without_task(f"{host}: the request for its key", outcome.output)
            file = folder / host
            problem = checked.get(host, "")
            if problem.startswith((CHANGED, REFUSED)):
                keys.refused[host] = problem
            elif problem.startswith(UNKNOWN) and file.exists():
                keys.unknown.append(_met(host, ways[host], file))
            elif problem.startswith(UNKNOWN):
                why = asked.get(host, "").strip().split("\n")[-1]
                keys.refused[host] = (
                    f"{UNKNOWN}, and ssh cannot fetch the key: {why}; if ssh reaches this host "
                    "through a jump host, connect to the jump host once with ssh"
                )
    return keys


def refusal(what: str, keys: Keys) -> FtclusterError:
    """Return the error for hosts whose keys ssh refused; the message names each host.

    Args:
        what: name of the ftcluster command, for the message.
    """
    lines = [f"{met.host}: {UNKNOWN}: {met.address}, {met.fingerprint}" for met in keys.unknown]
    lines += [f"{host}: {why}" for host, why in keys.refused.items()]
    hint = WAYS if keys.unknown else "nothing was changed"
    hosts = [*(met.host for met in keys.unknown), *keys.refused]
    problem = f"{what}: ssh refuses the keys of {', '.join(hosts)}"
    return FtclusterError("\n  ".join([problem, *lines]), hint)


def store(keys: Sequence[Met]) -> None:
    """Add keys to the known_hosts files that ssh reads.

    Raises:
        OSError: a file cannot be written.
    """
    for met in keys:
        if not met.file.parent.exists():
            met.file.parent.mkdir(mode=0o700)
        descriptor = os.open(met.file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            size = os.fstat(file.fileno()).st_size
            torn = size and os.pread(file.fileno(), 1, size - 1) != b"\n"
            os.write(file.fileno(), (("\n" if torn else "") + met.lines).encode())
            os.fsync(file.fileno())


def _met(host: str, way: Mapping[str, Any], file: Path) -> Met:
    shown = subprocess.run(
        ["ssh-keygen", "-lf", str(file)], capture_output=True, text=True, check=True
    ).stdout.split()
    # fields of the output: bits, fingerprint, name or comment (one or more words), (type)
    return Met(host, _address(way), file.read_text(), f"{shown[-1].strip('()')} {shown[1]}",
               _known_hosts(way))  # fmt: skip


def _address(way: Mapping[str, Any]) -> str:
    return f"{way['host']}:{way['port']}" if str(way["port"]) else str(way["host"])


def _known_hosts(way: Mapping[str, Any]) -> Path:
    """Return the file in which ssh would store the key of a host.

    Args:
        way: parameters of the ssh connection to the host, as the playbook's task reports them.

    Raises:
        FtclusterError: ssh does not accept the options, or stores no keys.
    """
    options = [word for text in way["options"] for word in shlex.split(str(text))]
    for flag, value in (("-p", way["port"]), ("-l", way["user"])):
        options += [flag, str(value)] if str(value) else []
    argv = ["ssh", "-G", *options, "--", str(way["host"])]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    match = re.search(r"^userknownhostsfile (\S+)", done.stdout, re.MULTILINE)
    if done.returncode or not match or match[1] in ("none", os.devnull):
        why = done.stderr.strip() or "its configuration names no known_hosts file"
        raise FtclusterError(
            f"{way['host']}: ssh cannot store the key of this host: {why}",
            "set UserKnownHostsFile to a file in ssh's configuration",
        )
    return Path(match[1]).expanduser()


def _without_passwords(options: Sequence[str]) -> list[str]:
    """Remove the passwords from the options, because the hosts are not trusted yet."""
    kept: list[str] = []
    skip = False
    for word in options:
        if not skip and word not in PASSWORDS:
            kept.append(word)
        skip = not skip and word in PASSWORDS
    return kept
