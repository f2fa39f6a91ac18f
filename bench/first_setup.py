"""Compares the first setup of several hosts with the first setup of one host.

    sudo .venv-dev/bin/python -m bench.first_setup [--hosts N] [--cpu PERCENT ...] [--turns N]
        [--warm] [--results FILE]

from the repository's root.

Boots bare hosts with tests/testbed, and times `ftcluster setup` for one host and for N hosts,
interleaved, always on new hosts and with the wheels downloaded before (with --warm, by a setup that
does not count). All hosts and the control
node share the cores of this machine. --cpu 40 limits each host to a share of a core, so that N
hosts have N times the CPU time of one host, like real hosts. With --cpu 0 there is no limit, and N
hosts compete for the cores that one host has alone. A second run on the same hosts is timed too.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.machines import cpu, resumed
from bench.runs import write
from tests.programs import FTCLUSTER
from tests.testbed import Testbed

SECONDS = 1200


def main() -> int:
    """Measure, print a table, write the results so far, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--cpu", type=int, nargs="*", default=[0, 40])
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    results = resumed(options.results, cpu(), "runs")
    folder = Path(tempfile.mkdtemp(prefix="ftcluster-bench-"))
    try:
        if options.warm:
            measure(folder, 1, 0, "warm")
        for turn in range(options.turns):
            for percent in options.cpu:
                for count in (1, options.hosts):
                    first, second = measure(folder, count, percent, f"{turn}-{percent}-{count}")
                    results["runs"].append(
                        {"cpu_percent": percent, "hosts": count, "first": round(first, 1),
                         "second": round(second, 1)}
                    )  # fmt: skip
                    print(results["runs"][-1], file=sys.stderr)
                    write(options.results, results)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("\n".join(table(results["runs"])))
    return 0


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


def medians(runs: Sequence[dict[str, Any]]) -> dict[tuple[int, int], dict[str, float]]:
    """Return the median seconds of the first and the second setup.

    Returns:
        Keys are the percentage of a core that each host has (0: no limit), and the number of hosts.
    """
    keys = dict.fromkeys((run["cpu_percent"], run["hosts"]) for run in runs)
    return {
        key: {
            turn: statistics.median(values)
            for turn in ("first", "second")
            if (
                values := [
                    run[turn]
                    for run in runs
                    if (run["cpu_percent"], run["hosts"]) == key and turn in run
                ]
            )
        }
        for key in keys
    }


def table(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Format a row for each share of a core: one host against several, and the second setup."""
    found = medians(runs)
    most = max((hosts for _, hosts in found), default=1)
    rows = [
        f"| each host has | 1 host, s | {most} hosts, s | ratio | second setup, 1 host, s "
        f"| {most} hosts, s |",
        "|---" * 6 + "|",
    ]
    for percent in dict.fromkeys(percent for percent, _ in found):
        one, several = found.get((percent, 1)), found.get((percent, most))
        share = f"{percent} % of a core" if percent else "a share of all cores"
        if one and several:
            second = f"{one['second']:.0f}" if "second" in one else ""
            rows.append(
                f"| {share} | {one['first']:.0f} | {several['first']:.0f} "
                f"| {several['first'] / one['first']:.1f} | {second} | {several['second']:.0f} |"
            )
    return rows


if __name__ == "__main__":
    sys.exit(main())
