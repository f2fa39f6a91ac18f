"""Ranks in the networks and cgroups of test hosts, with the files of this machine.

The hosts need no setup: `testbed up` is enough. mpirun starts one rank per host.
"""

import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.testbed.cgroups import Group
from tests.testbed.settings import FIRST_ADDRESS, NET, SWITCH

PORT = 29560
# Hydra calls this program with options for ssh, the host's address and the command
LAUNCHER = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
case $1 in
%s
esac
shift
for group in $groups; do echo $$ > "$group" || exit 1; done
exec nsenter --net=/run/netns/$network $pinned sh -c "$*"
"""


def address(number: int) -> str:
    """Return the address of a host by its number."""
    return f"{NET}.{FIRST_ADDRESS + number}"


def network(number: int) -> str:
    """Return the network namespace of a host by its number."""
    return f"{SWITCH}-node{number}"


def in_network(number: int) -> list[str]:
    """Return the arguments that start a command in the network of a host."""
    return ["nsenter", f"--net=/run/netns/{network(number)}"]


def launch(
    stack: Path, checkout: Path, hosts: int, program: Path, words: Sequence[str],
    pinned: bool = False,
) -> Iterator[str]:  # fmt: skip
    """Run a Python program on the first hosts; yield the lines of its output.

    Args:
        stack: folder with bin/python, with torch, and bin/mpirun.
        checkout: folder with the packages `train` and `common`.
        pinned: True if each rank has one of this machine's cores; False if the limits of its host's
            cgroup apply.

    Raises:
        SystemExit: a rank has failed.
    """
    addresses = [address(number) for number in range(hosts)]
    with tempfile.TemporaryDirectory() as folder:
        launcher = Path(folder, "launcher")
        cases = (_case(number, pinned) for number in range(hosts))
        launcher.write_text(LAUNCHER % "\n".join(cases), encoding="utf-8")
        launcher.chmod(0o755)
        variables = {
            "PYTHONPATH": os.pathsep.join(str(checkout / part) for part in ("train", "common")),
            "PATH": f"{stack / 'bin'}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": addresses[0], "MASTER_PORT": str(PORT), "GLOO_SOCKET_IFNAME": "eth0",
            "FI_PROVIDER": "tcp", "FI_TCP_IFACE": "eth0", "I_MPI_FABRICS": "ofi", "I_MPI_PIN": "0",
            "I_MPI_HYDRA_IFACE": "eth0", "I_MPI_HYDRA_BRANCH_COUNT": "4096",
        }  # fmt: skip
        argv = [
            stack / "bin/mpirun", "-launcher", "ssh", "-launcher-exec", launcher,
            "-hosts", ",".join(addresses), "-n", str(hosts), "-ppn", "1", stack / "bin/python",
            "-P", program, *words,  # otherwise bench/profile.py hides Python's own module
        ]  # fmt: skip
        # Hydra starts the rank of its own host without a launcher, so mpirun gets the limits too
        ranks = subprocess.Popen(
            [launcher, addresses[0], shlex.join(map(str, argv))],
            env=os.environ | variables, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert ranks.stdout
        try:
            yield from ranks.stdout
        finally:
            ranks.stdout.close()
            if ranks.wait() != 0:
                raise SystemExit(f"error: {program.name} failed on the hosts, see above")


def _case(number: int, pinned: bool) -> str:
    """Return the shell's assignments for a host."""
    pin = f"taskset -c {number % (os.cpu_count() or 1)}" if pinned else ""
    groups = "" if pinned else Group(f"node{number}").procs_files("ranks")
    return f"{address(number)}) network={network(number)} pinned='{pin}' groups='{groups}' ;;"
