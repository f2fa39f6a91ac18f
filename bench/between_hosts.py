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
import sys
from pathlib import Path
from typing import Any

from bench.machines import cpu
from bench.on_hosts import launch
from bench.runs import ROOT, write

SIZES = (0, 4 << 10, 64 << 10, 1 << 20, 4 << 20, 25 << 20, 100 << 20, 256 << 20)
PROGRAM = Path(__file__).absolute().with_name("between_hosts_run.py")


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
                lines = launch(
                    options.stack, options.checkout, hosts, PROGRAM, request, pinned=True
                )
                for one in (json.loads(line) for line in lines if line.startswith("{")):
                    found.append({"hosts": hosts, "rate": rate, "load": load, **one})
                    print(row(found[-1]), flush=True)
                write(options.results, {**cpu(), "rows": found})
    finally:
        for number in range(max(options.hosts)):
            bed.shape(f"node{number}", "off")
    return 0


if __name__ == "__main__":
    sys.exit(main())
