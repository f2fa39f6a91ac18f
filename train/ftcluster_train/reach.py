"""Whether the head reaches the other hosts over the mesh, found out before anything is launched.

mpirun calls `ssh -q`: its own error names no host, and it waits minutes for one that is off.
"""

import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

PROBE_SECONDS = 15
AT_ONCE = 32


@dataclass(frozen=True)
class Host:
    """One host of a cluster.

    Attributes:
        name: the inventory's name.
        address: the address that the head reaches it by.
    """

    name: str
    address: str


def unreachable(hosts: Sequence[Host], ssh_config: str) -> list[str]:
    """Hosts that the head's SSH does not reach, as sentences with ssh's own reason.

    Args:
        hosts: all but the head.
        ssh_config: the mesh's SSH configuration.
    """

    def probe(host: Host) -> str:
        argv = ["ssh", "-F", ssh_config, host.address, "true"]
        try:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=PROBE_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"{host.name} ({host.address}): ssh from the head got no answer in time"
        except FileNotFoundError:
            return f"{host.name} ({host.address}): the head has no ssh; install an SSH client there"
        if done.returncode == 0:
            return ""
        return f"{host.name} ({host.address}): ssh from the head fails: {_words(done.stderr)}"

    pool = ThreadPoolExecutor(max_workers=AT_ONCE)
    try:
        return [problem for problem in pool.map(probe, hosts) if problem]
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
