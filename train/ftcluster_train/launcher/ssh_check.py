"""Whether the head reaches the other hosts over the mesh, found out before anything is launched,
and whether they have the run's stack.

mpirun calls `ssh -q`: its own error names no host, and it waits minutes for one that is off.
"""

import hashlib
import shlex
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

PROBE_SECONDS = 15
AT_ONCE = 32
NODE_PACKAGE = "wheels-node_agent.json"  # in a stack: name and hash of the node package
SSH_FAILED = 255  # its exit code for a failure of its own, ssh(1)


@dataclass(frozen=True)
class Host:
    """One host of a cluster.

    Attributes:
        name: the inventory's name.
        address: the address that the head reaches it by.
    """

    name: str
    address: str


@dataclass(frozen=True)
class Refusal:
    """A host on which a command over the mesh has not succeeded.

    Attributes:
        host: which one.
        reason: why, in words.
        by_ssh: whether ssh failed and not the command.
    """

    host: Host
    reason: str
    by_ssh: bool


def unreachable(hosts: Sequence[Host], ssh_config: str, stack: Path | None = None) -> list[str]:
    """Hosts that the head's SSH does not reach, as sentences with ssh's own reason.

    Args:
        hosts: all but the head.
        ssh_config: the mesh's SSH configuration.
        stack: the run's, at the same place on all hosts; those that have another one there, or
            none, are among the hosts, too.
    """
    return [
        f"{refusal.host.name} ({refusal.host.address}): {refusal.reason}"
        for refusal in refusals(hosts, ssh_config, same_stack(stack) if stack else "")
    ]


def same_stack(stack: Path) -> str:
    """A command that fails on a host that does not have a stack as it is here.

    The name of a stack has a digest of its packages, but for the node package, which is listed in
    it.
    """
    there = shlex.quote(f"{stack}/bin")
    try:
        listed = hashlib.sha256((stack / NODE_PACKAGE).read_bytes()).hexdigest()
    except OSError:
        listed = ""
    mend = "run ftcluster setup, which makes it the same on all"
    script = (
        f"if ! cd {there} 2>/dev/null; then "
        f'echo "it does not have {stack.name}, the stack in use on the head: {mend}" >&2; '
        "exit 1; fi; "
        f"list=$(sha256sum 2>/dev/null < ../{NODE_PACKAGE}); list=${{list%% *}}; "
        f'[ "$list" = "{listed}" ] || {{ echo "its node package is another one than the head\'s: '
        f'{mend}" >&2; exit 1; }}'
    )
    return f"sh -c {shlex.quote(script)}"


def refusals(
    hosts: Sequence[Host], ssh_config: str, command: str = "", data: str = ""
) -> list[Refusal]:
    """Hosts on which a command over the mesh does not succeed, all tried at the same time.

    Args:
        hosts: all but the head.
        ssh_config: the mesh's SSH configuration.
        command: for a shell on the host; "" only looks whether ssh gets there.
        data: what the command finds on its stdin.
    """

    def probe(host: Host) -> Refusal | None:
        argv = ["ssh", "-F", ssh_config, host.address, command or "true"]
        try:
            done = subprocess.run(
                argv, input=data, capture_output=True, text=True, timeout=PROBE_SECONDS,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Refusal(host, "ssh from the head got no answer in time", True)
        except FileNotFoundError:
            return Refusal(host, "the head has no ssh; install an SSH client there", True)
        if done.returncode == 0:
            return None
        if command and done.returncode != SSH_FAILED:
            return Refusal(host, _words(done.stderr), False)
        return Refusal(host, f"ssh from the head fails: {_words(done.stderr)}", True)

    pool = ThreadPoolExecutor(max_workers=AT_ONCE)
    try:
        return [refusal for refusal in pool.map(probe, hosts) if refusal]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # whoever breaks it off need not wait


def _words(stderr: str) -> str:
    """ssh's complaint in one line, and what to do where it is a changed host key."""
    if "REMOTE HOST IDENTIFICATION HAS CHANGED" in stderr:
        return (
            "its host key is another one than at the last setup. If the host was installed anew, "
            "run setup; if not, somebody may be answering in its place"
        )
    lines = [line.strip() for line in stderr.splitlines() if line.strip(" @\r")]
    return lines[-1] if lines else "without a word"
