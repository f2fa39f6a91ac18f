"""Runs a command on all other hosts over the mesh: before a launch, whether they have its stack.

mpirun calls `ssh -q`: its own error names no host, and it waits minutes for one that is off.
Standard library only.
"""

import hashlib
import shlex
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ftcluster_common.protocol.launch import Host
from ftcluster_common.protocol.timeouts import Timeouts

AT_ONCE = 32
NODE_PACKAGE = "wheels-node_agent.json"  # in a stack: name and hash of the node package
SSH_FAILED = 255  # its exit code for a failure of its own, ssh(1)


@dataclass(frozen=True)
class HostFailure:
    """A host on which a command over the mesh failed.

    Attributes:
        by_ssh: whether ssh failed and not the command.
        in_use: whether another run uses the host.
    """

    host: Host
    reason: str
    by_ssh: bool
    in_use: bool = False


def same_stack(stack: Path, then: str = ":") -> str:
    """A command that fails on a host that does not have the same stack as this host.

    The name of a stack has a digest of its packages without the node package; that one is compared
    by the list in the stack.

    Args:
        then: what a shell runs where the stack is the same.
    """
    there = shlex.quote(f"{stack}/bin")
    try:
        listed = hashlib.sha256((stack / NODE_PACKAGE).read_bytes()).hexdigest()
    except OSError:
        listed = ""
    fix = "run ftcluster setup"
    script = (
        f"if ! cd {there} 2>/dev/null; then "
        f'echo "it does not have {stack.name}, the stack in use on the head: {fix}" >&2; '
        "exit 1; fi; "
        f"list=$(sha256sum 2>/dev/null < ../{NODE_PACKAGE}); list=${{list%% *}}; "
        f'[ "$list" = "{listed}" ] || {{ echo "its node package differs from the head\'s: '
        f'{fix}" >&2; exit 1; }}; {then}'
    )
    return f"sh -c {shlex.quote(script)}"


def refusals(
    hosts: Sequence[Host],
    ssh_config: str,
    command: str = "",
    data: str = "",
    limit_seconds: float = Timeouts().ssh,
) -> list[HostFailure]:
    """Run a command on hosts over the mesh, on all at the same time; returns where it failed.

    Args:
        hosts: all but the head.
        command: for a shell on the host; "" only checks whether ssh connects.
        data: the command's stdin.
    """

    def probe(host: Host) -> HostFailure | None:
        argv = ["ssh", "-F", ssh_config, host.address, command or "true"]
        try:
            done = subprocess.run(
                argv, input=data.encode(), capture_output=True, timeout=limit_seconds, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return no_answer(host, limit_seconds)
        except FileNotFoundError:
            return no_ssh(host)
        words = done.stderr.decode(errors="replace")  # a banner may be in any encoding
        return failed(host, done.returncode, words) if done.returncode else None

    return ask_all(hosts, probe)


def ask_all(hosts: Sequence[Host], ask: Callable[[Host], HostFailure | None]) -> list[HostFailure]:
    """Call a function with each host, for many at the same time; returns the refusals."""
    pool = ThreadPoolExecutor(max_workers=AT_ONCE)
    try:
        return [refusal for refusal in pool.map(ask, hosts) if refusal]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # a signal need not wait for ssh


def no_answer(host: Host, seconds: float) -> HostFailure:
    """The host does not answer."""
    return HostFailure(host, f"ssh from the head got no answer within {seconds:g} s", True)


def no_ssh(host: Host) -> HostFailure:
    """No host can be reached."""
    return HostFailure(host, "the head has no ssh; install an SSH client there", True)


def failed(host: Host, code: int, stderr: str) -> HostFailure:
    """The command failed on the host, or ssh did before it."""
    if code == SSH_FAILED:
        return HostFailure(host, f"ssh from the head fails: {_words(stderr)}", True)
    return HostFailure(host, _words(stderr), False)


def _words(stderr: str) -> str:
    """The last line of ssh's error, and what to do about a changed host key."""
    if "REMOTE HOST IDENTIFICATION HAS CHANGED" in stderr:
        return (
            "its host key has changed since the last setup. If the host was reinstalled, run "
            "ftcluster setup; if not, another machine may be answering at its address"
        )
    lines = [line.strip() for line in stderr.splitlines() if line.strip(" @\r")]
    return lines[-1] if lines else "without output"
