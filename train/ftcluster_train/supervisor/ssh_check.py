"""Commands on all other hosts over the mesh, such as a check for the same stack before a launch.

mpirun alone is not enough: it calls `ssh -q`, so its error names no host, and it waits minutes for
a host that is off. Standard library only.
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
from ftcluster_train.supervisor.ssh_causes import (
    NO_SSH,
    SSH_FAILED,
    TIMEOUT,
    Cause,
    cause_of,
    describe,
)

AT_ONCE = 32
NODE_PACKAGE = "wheels-node_agent.json"  # lists name and hash of a stack's node package
REACHED = "ftcluster-reached"  # printed by the login shell of a host that ssh reaches


@dataclass(frozen=True)
class HostFailure:
    """A host on which a command over the mesh failed.

    Attributes:
        cause: why the run cannot use the host; None if the command failed.
        in_use: True if another run uses the host.
        place: place of this run in the host's queue, from 1; 0 if it does not wait.
    """

    host: Host
    reason: str
    cause: Cause | None = None
    in_use: bool = False
    place: int = 0

    @property
    def lasting(self) -> bool:
        """True if the failure does not pass with time."""
        return self.cause is not None and self.cause.lasting


def same_stack(stack: Path, then: str = ":") -> str:
    """Return a command that fails on a host whose stack differs from this host's.

    A stack's name contains a digest of all its packages except the node package. The command
    compares the node package by its name and hash, which a file of the stack lists.

    Args:
        then: shell command that runs if the stacks are the same.
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


def unreached_hosts(
    hosts: Sequence[Host], ssh_config: str, limit_seconds: float = Timeouts().ssh
) -> list[HostFailure]:
    """Connect to all hosts at the same time, as mpirun is about to; return the failures.

    Hydra calls `ssh -q -F SSH_CONFIG -x ADDRESS COMMAND`. This function needs the messages that -q
    suppresses, and the configuration already disables X11. Open connections are not reused, because
    they still work after a change of the host's key, while mpirun's new connection fails.
    """

    def connect(host: Host) -> HostFailure | None:
        done = _run_ssh(host, ssh_config, f"echo {REACHED}", b"", limit_seconds)
        if isinstance(done, HostFailure):
            return done
        if done.returncode == 0 and REACHED.encode() in done.stdout:
            return None
        printed = (done.stdout + done.stderr).decode(errors="replace")  # nologin prints to stdout
        return _failed_by(cause_of(done.returncode, printed), host, printed)

    return ask_all(hosts, connect)


def refusals(
    hosts: Sequence[Host],
    ssh_config: str,
    command: str = "",
    data: str = "",
    limit_seconds: float = Timeouts().ssh,
) -> list[HostFailure]:
    """Run a command on all hosts at the same time over the mesh; return the failures.

    Args:
        hosts: all hosts but the head.
        command: shell command; "" only checks whether ssh connects.
        data: stdin of the command.
    """

    def probe(host: Host) -> HostFailure | None:
        done = _run_ssh(host, ssh_config, command or "true", data.encode(), limit_seconds)
        if isinstance(done, HostFailure):
            return done
        stderr = done.stderr.decode(errors="replace")  # a banner may be in any encoding
        return failed(host, done.returncode, stderr) if done.returncode else None

    return ask_all(hosts, probe)


def ask_all(hosts: Sequence[Host], ask: Callable[[Host], HostFailure | None]) -> list[HostFailure]:
    """Call a function for each host, in parallel threads; return the failures."""
    pool = ThreadPoolExecutor(max_workers=AT_ONCE)
    try:
        return [refusal for refusal in pool.map(ask, hosts) if refusal]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # after a signal, do not wait for ssh


def _run_ssh(
    host: Host, ssh_config: str, command: str, data: bytes, limit_seconds: float
) -> "subprocess.CompletedProcess[bytes] | HostFailure":
    argv = ["ssh", "-F", ssh_config, host.address, command]
    try:
        return subprocess.run(
            argv, input=data, capture_output=True, timeout=limit_seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return no_answer(host, limit_seconds)
    except FileNotFoundError:
        return no_ssh(host)


def no_answer(host: Host, seconds: float) -> HostFailure:
    """Return the failure of a host that does not answer."""
    reason = f"ssh from the head got no answer within {seconds:g} s"
    return HostFailure(host, reason, TIMEOUT)


def no_ssh(host: Host) -> HostFailure:
    """Return the failure of a head without an SSH client."""
    return HostFailure(host, "the head has no ssh; install an SSH client there", NO_SSH)


def failed(host: Host, code: int, stderr: str) -> HostFailure:
    """Return the failure of the command on the host, or of ssh itself."""
    if code == SSH_FAILED:
        return _failed_by(cause_of(code, stderr), host, stderr)
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return HostFailure(host, lines[-1] if lines else "without output")


def _failed_by(cause: Cause, host: Host, printed: str) -> HostFailure:
    return HostFailure(host, describe(cause, printed), cause)
