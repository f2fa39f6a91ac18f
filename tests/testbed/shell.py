"""Running other programs, and the one exception that a user of the testbed sees."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

# tool: the Debian package that contains it
TOOLS = {
    "apt-config": "apt",
    "bridge": "iproute2",
    "ip": "iproute2",
    "mmdebstrap": "mmdebstrap",
    "mount": "mount",
    "nft": "nftables",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "setsid": "util-linux",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "systemd-nspawn": "systemd-container",
    "tc": "iproute2",
    "unshare": "util-linux",
}


class TestbedError(Exception):
    """An error that the user can fix; the message explains how."""

    __test__ = False  # its name starts with Test, but pytest must not collect it


def environment() -> dict[str, str]:
    """Return the environment with the folders of system tools on PATH, even after `su`."""
    return {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"}


def run(
    *cmd: str | Path,
    check: bool = True,
    text: str | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with `text` as its input.

    Raises:
        TestbedError: the command failed and `check` is set, or there is no such command.
    """
    argv = [str(word) for word in cmd]
    try:
        done = subprocess.run(
            argv, input=text, text=True, capture_output=True, env={**environment(), **(env or {})}
        )
    except FileNotFoundError:
        raise missing_tools([argv[0]]) from None
    if check and done.returncode:
        said = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
        raise TestbedError(f"{shlex.join(argv)}: {said}")
    return done


def missing_tools(tools: list[str]) -> TestbedError:
    packages = sorted({TOOLS.get(tool, tool) for tool in tools})
    return TestbedError(
        f"not installed: {', '.join(tools)}\n"
        f"  install:  apt-get install --no-install-recommends {' '.join(packages)}"
    )


def require_root() -> None:
    if os.geteuid():
        raise TestbedError("needs root (it makes namespaces, mounts and cgroups): use sudo")


def require_tools() -> None:
    """Check that all required programs are installed.

    Raises:
        TestbedError: programs are missing; the message has the apt-get line that installs them.
    """
    path = environment()["PATH"]
    missing = [tool for tool in TOOLS if not shutil.which(tool, path=path)]
    if missing:
        raise missing_tools(missing)


def start(argv: list[str], log: Path) -> None:
    """Run a command that leaves a program behind; both write to `log`.

    The program has to detach itself (`setsid --fork`), so that it leaves no zombie.
    """
    with log.open("ab") as out:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment()
        )
    if done.returncode:
        raise TestbedError(f"{shlex.join(argv)}: exit code {done.returncode}: see {log}")
