"""Collectives between test hosts over gloo, impi and MPI itself, in turns in the same processes.

    sudo env FTCLUSTER_TESTBED_NAME=k .venv-dev/bin/python -m bench.between_hosts --stack DIR
        [--hosts 2 4] [--rates off 10gbit 1gbit] [--sizes BYTES ...] [--names gloo,impi,mpi]
        [--seconds 20] [--checkout DIR] --results FILE

after `testbed up 4`. Ranks run in the networks of the hosts, with this machine's files: --stack has
bin/python with torch and bin/mpirun, and the backend comes from --checkout (by default this
checkout). Each host has one core, and the hosts share this machine's cores. With `chrt -r 1`, no
other program uses these cores, but then MPI itself, which polls, cannot be measured with several
hosts on a core. A size of 0 is a barrier. A time is the slowest rank's time; for small sizes it is
the mean of 20 calls. The result is the median of all turns, with quartiles.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.machines import cpu
from bench.runs import ROOT, write

SIZES = (0, 4 << 10, 64 << 10, 1 << 20, 4 << 20, 25 << 20, 100 << 20, 256 << 20)
PORT = 29560
PROGRAM = Path(__file__).absolute().with_name("between_hosts_run.py")
# Hydra calls this program with options for ssh, the host's address and the command
LAUNCHER = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
number=$((${1##*.} - FIRST)); shift
exec nsenter --net=/run/netns/SWITCH-node$number taskset -c $((number % CORES)) sh -c "$*"
"""


def launch(stack: Path, checkout: Path, hosts: int, request: Sequence[str]) -> list[dict[str, Any]]:
    """Measure with the ranks of `hosts` hosts; yield a line for each size."""
    from tests.testbed.settings import FIRST_ADDRESS, NET, SWITCH

    addresses = [f"{NET}.{FIRST_ADDRESS + number}" for number in range(hosts)]
    cores = os.cpu_count() or 1
    names = {"FIRST": str(FIRST_ADDRESS), "SWITCH": SWITCH, "CORES": str(cores)}
    with tempfile.TemporaryDirectory() as name:
        launcher, text = Path(name, "launcher"), LAUNCHER
        for key, value in names.items():
            text = text.replace(key, value)
        launcher.write_text(text, encoding="utf-8")
        launcher.chmod(0o755)
        variables = {
            "PYTHONPATH": os.pathsep.join(str(checkout / part) for part in ("train", "common")),
            "PATH": f"{stack / 'bin'}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": addresses[0], "MASTER_PORT": str(PORT), "GLOO_SOCKET_IFNAME": "eth0",
            "FI_PROVIDER": "tcp", "FI_TCP_IFACE": "eth0", "I_MPI_FABRICS": "ofi", "I_MPI_PIN": "0",
            "I_MPI_HYDRA_IFACE": "eth0", "I_MPI_HYDRA_BRANCH_COUNT": "4096",
        }  # fmt: skip
        done = subprocess.run(
            [
                "nsenter", f"--net=/run/netns/{SWITCH}-node0", stack / "bin/mpirun",
                "-launcher", "ssh", "-launcher-exec", launcher, "-hosts", ",".join(addresses),
                "-n", str(hosts), "-ppn", "1", stack / "bin/python", PROGRAM, *request,
            ],
            env=os.environ | variables, stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def row(one: dict[str, Any]) -> str:
    """Format a measurement as a line: medians with quartiles, and ratios of impi to the others."""
    cells = [f"{name} {q[1]:.3f} ({q[0]:.3f}-{q[2]:.3f})" for name, q in one["ms"].items()]
    medians = {name: q[1] for name, q in one["ms"].items()}
    others = [name for name in medians if name != "impi"]
    ratios = " ".join(f"impi / {name} {medians['impi'] / medians[name]:.2f}" for name in others)
    where = f"{one['hosts']} hosts {one['rate']:>7} load {one['load']:.1f}"
    return f"{where} {one['bytes'] >> 10:>7} KiB  {'  '.join(cells)}  {ratios}"


def main() -> int:
    """Measure, print rows and write the results; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stack", type=Path, required=True)
    parser.add_argument("--checkout", type=Path, default=ROOT)
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rates", nargs="+", default=["off", "10gbit", "1gbit"])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--names", default="gloo,impi,mpi")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    from tests.testbed import Testbed

    bed, found = Testbed(), []
    try:
        for rate in options.rates:
            for number in range(max(options.hosts)):
                bed.shape(f"node{number}", rate)
            for hosts in options.hosts:
                load = os.getloadavg()[0]
                request = [str(options.seconds), options.names, *map(str, options.sizes)]
                for one in launch(options.stack, options.checkout, hosts, request):
                    found.append({"hosts": hosts, "rate": rate, "load": load, **one})
                    print(row(found[-1]), flush=True)
                write(options.results, {**cpu(), "rows": found})
    finally:
        for number in range(max(options.hosts)):
            bed.shape(f"node{number}", "off")
    return 0


if __name__ == "__main__":
    sys.exit(main())
