"""Compares the first setup of several hosts with the first setup of one host.

    sudo .venv-dev/bin/python -m bench.first_setup [--hosts N] [--cpu PERCENT ...] [--turns N]

from the repository's root.

Boots bare hosts with tests/testbed, and times `ftcluster setup` for one host and for N hosts,
interleaved, always on new hosts and with the wheels downloaded before. All hosts and the control
node share the cores of this machine. --cpu 40 limits each host to a share of a core, so that N
hosts have N times the CPU time of one host, like real hosts. With --cpu 0 there is no limit, and N
hosts compete for the cores that one host has alone. A second run on the same hosts is timed too.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.programs import FTCLUSTER
from tests.testbed import Testbed

SECONDS = 1200


def main() -> int:
    """Measure, print one JSON document, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--cpu", type=int, nargs="*", default=[0, 40])
    parser.add_argument("--turns", type=int, default=2)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ftcluster-bench-"))
    times: list[dict[str, float]] = []
    try:
        warm(folder)
        for turn in range(options.turns):
            for percent in options.cpu:
                for count in (1, options.hosts):
                    first, second = measure(folder, count, percent, f"{turn}-{percent}-{count}")
                    times.append({"cpu": percent, "hosts": count, "first": first, "second": second})
                    print(times[-1], file=sys.stderr)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report(times, options.hosts)
    return 0


def warm(folder: Path) -> None:
    """Download the wheels by setting up a bare host that is then removed; a dry run would not."""
    measure(folder, 1, 0, "warm")


def measure(folder: Path, count: int, percent: int, name: str) -> tuple[float, float]:
    """Return the seconds of the first and second setup of fresh hosts with a limited CPU."""
    with Testbed() as bed:
        bed.up(count)
        (folder / "hosts.ini").write_text(bed.inventory())
        for host in range(count):
            if percent:
                bed.cpu(f"node{host}", percent)
        found = []
        for _ in range(2):
            began = time.monotonic()
            done: subprocess.CompletedProcess[str] = bed.run(
                FTCLUSTER, "setup", "hosts.ini",
                env={"XDG_STATE_HOME": str(folder / name)}, cwd=folder, timeout=SECONDS,
            )  # fmt: skip
            if done.returncode != 0:
                raise SystemExit(done.stderr)
            found.append(time.monotonic() - began)
        return found[0], found[1]


def report(times: list[dict[str, float]], hosts: int) -> None:
    """Print a table to stderr, and all results to stdout."""
    for percent in sorted({int(t["cpu"]) for t in times}):
        by = {
            (count, what): statistics.median(
                t[what] for t in times if t["cpu"] == percent and t["hosts"] == count
            )
            for count in (1, hosts)
            for what in ("first", "second")
        }
        share = f"{percent} % of a core each" if percent else "all cores shared"
        print(
            f"{share}: first setup {by[1, 'first']:.0f} s for one host, {by[hosts, 'first']:.0f} s "
            f"for {hosts} ({by[hosts, 'first'] / by[1, 'first']:.2f} x); second "
            f"{by[1, 'second']:.0f} and {by[hosts, 'second']:.0f} s",
            file=sys.stderr,
        )
    print(json.dumps({"cores": os.cpu_count(), "runs": times}))


if __name__ == "__main__":
    sys.exit(main())
