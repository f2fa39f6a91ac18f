"""An operator's access: a key, the hosts' known keys, ssh's options, Ansible's inventory."""

from __future__ import annotations

import time
from pathlib import Path

from . import network
from .settings import OPERATOR, SWITCH, Node, Settings
from .shell import TestbedError, run


def key(settings: Settings) -> Path:
    """Return the operator's private key; the public key is beside it."""
    return settings.hosts / "ops_key"


def known_hosts(settings: Settings) -> Path:
    return settings.hosts / "known_hosts"


def make_key(settings: Settings) -> None:
    if not key(settings).exists():
        comment = f"{OPERATOR}@testbed"
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", key(settings))


def write_known_hosts(settings: Settings) -> None:
    """Write known_hosts from the hosts' keys, so that no key is trusted on first use."""
    made = [node for node in settings.all_nodes() if node.host_key.exists()]
    lines = [f"{node.name},{node.address} {node.host_key.read_text()}" for node in made]
    known_hosts(settings).write_text("".join(lines))


def ssh_options(settings: Settings) -> list[str]:
    options = {
        "UserKnownHostsFile": known_hosts(settings),
        "IdentitiesOnly": "yes",
        "ConnectTimeout": 5,
        # A host without power sends nothing: without these two options a reused connection hangs
        # for ~15 min.
        "ServerAliveInterval": 5,
        "ServerAliveCountMax": 2,
    }
    return [word for name, value in options.items() for word in ("-o", f"{name}={value}")]


def ssh_argv(settings: Settings, node: Node, *more: str) -> list[str]:
    """Return the operator's ssh command from the control host; `more` are further arguments."""
    strict = ["-o", "StrictHostKeyChecking=yes"]  # Ansible gets this setting from its caller
    login = [
        "-F",
        "none",
        "-i",
        str(key(settings)),
        "-l",
        OPERATOR,
        *strict,
        *ssh_options(settings),
    ]
    return network.inside(SWITCH, "ssh", *login, node.address, *more)


def wait_for_ssh(settings: Settings, node: Node, deadline: float) -> None:
    """Wait until the host's sshd responds; `deadline` is a time of the monotonic clock."""
    argv = ssh_argv(settings, node)
    quick = ["-o", "ConnectTimeout=1", "-o", "LogLevel=ERROR"]
    at = argv.index("ssh") + 1  # ssh uses the first value of a repeated option
    argv[at:at] = quick
    while (tried := run(*argv, "true", check=False)).returncode:
        if network.is_cut_off(node):
            raise TestbedError(f"{node.name} is cut off from the network: heal it first")
        if time.monotonic() > deadline:
            said = tried.stderr.strip()
            console = node.folder / "console.log"
            raise TestbedError(f"{node.name} does not answer: {said}; see {console}")
        time.sleep(0.1)


def inventory(settings: Settings) -> str:
    """Return the hosts for Ansible (INI), as an administrator would write them."""
    hosts = [f"{node.name} ansible_host={node.address}\n" for node in settings.all_nodes()]
    return (
        "[nodes]\n" + "".join(hosts) + "\n[nodes:vars]\n"
        f"ansible_user={OPERATOR}\n"
        f"ansible_ssh_private_key_file={key(settings)}\n"
        f"ansible_ssh_common_args={' '.join(ssh_options(settings))}\n"
    )
