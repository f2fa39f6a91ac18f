"""How the time of setup grows with the number of hosts.

    sudo .venv-dev/bin/python -m bench.setup_scaling [HOSTS ...] [--turns N]

from the repository's root.

Boots light hosts with tests/testbed and times, for each number of hosts, an unchanged run of the
stages preflight, mesh and verify: medians of several runs, the numbers of hosts interleaved. The
stack is installed once, on this machine, and shown to all hosts read-only: what is measured is what
grows with the hosts. They share the cores of this machine, as real hosts do not.
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
from dataclasses import replace
from pathlib import Path

from tests.programs import FTCLUSTER
from tests.testbed import Testbed
from tests.testbed.settings import Settings

COUNTS = (4, 8, 16, 32)
TURNS = 3
STAGES = ("preflight", "mesh", "verify")
PREFIX = Path("/opt/ftcluster-bench")
SECONDS = 900


def main() -> int:
    """Measure, and print one JSON document; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("hosts", nargs="*", type=int, default=list(COUNTS))
    parser.add_argument("--turns", type=int, default=TURNS)
    options = parser.parse_args()
    counts = tuple(options.hosts)
    folder = Path(tempfile.mkdtemp(prefix="ftcluster-bench-"))
    try:
        times = measure(counts, options.turns, folder)
    finally:
        for path in (folder, PREFIX):
            shutil.rmtree(path, ignore_errors=True)
    report(times)
    return 0


def measure(counts: tuple[int, ...], turns: int, folder: Path) -> dict[int, dict[str, list[float]]]:
    """Seconds of each turn, by number of hosts and stage."""
    install_here(folder)
    times: dict[int, dict[str, list[float]]] = {n: {s: [] for s in STAGES} for n in counts}
    settings = replace(Settings.from_environment(), bind_ro=(str(PREFIX / "stacks"),))
    with Testbed(settings) as bed:
        bed.up(max(counts))
        for count in counts:
            write_inventory(bed, folder, count)
        run(bed, folder, max(counts), "--tags", "preflight,system,mesh")
        for _ in range(turns):
            for count in counts:
                for stage in STAGES:
                    began = time.monotonic()
                    run(bed, folder, count, "--tags", stage)
                    times[count][stage].append(time.monotonic() - began)
                    print(
                        f"{count} hosts, {stage}: {times[count][stage][-1]:.1f} s", file=sys.stderr
                    )
    return times


def install_here(folder: Path) -> None:
    """The stack on this machine, at the path where the hosts will see it."""
    argv = [
        FTCLUSTER, "setup", "localhost", "--tags", "preflight,stack",
        "-e", f"ftcluster_prefix={PREFIX}",
        "-e", "ansible_python_interpreter=/usr/bin/python3",  # the hosts have it at this place too
    ]  # fmt: skip
    environment = os.environ | {"XDG_STATE_HOME": str(folder / "here")}
    subprocess.run(argv, env=environment, cwd=folder, check=True)


def write_inventory(bed: Testbed, folder: Path, count: int) -> None:
    """The inventory of the first hosts."""
    lines = []
    for line in bed.inventory().splitlines():
        host = line.split(" ")[0]
        if not host.startswith("node") or int(host.removeprefix("node")) < count:
            lines.append(line)
    (folder / f"{count}.ini").write_text("\n".join([*lines, ""]))


def run(bed: Testbed, folder: Path, count: int, *options: str) -> None:
    """One setup; its failure ends the measurement with its words."""
    done = bed.run(
        FTCLUSTER, "setup", f"{count}.ini", "-e", f"ftcluster_prefix={PREFIX}", *options,
        env={"XDG_STATE_HOME": str(folder / str(count))}, cwd=folder, timeout=SECONDS,
    )  # fmt: skip
    if done.returncode != 0:
        raise SystemExit(done.stderr)


def report(times: dict[int, dict[str, list[float]]]) -> None:
    """A table on stderr, everything on stdout."""
    print(f"{'hosts':>6}" + "".join(f"{stage:>12}" for stage in STAGES), file=sys.stderr)
    for count, stages in times.items():
        cells = "".join(f"{statistics.median(found):11.1f}s" for found in stages.values())
        print(f"{count:6}{cells}", file=sys.stderr)
    print(json.dumps({"cores": os.cpu_count(), "seconds": times}))


if __name__ == "__main__":
    sys.exit(main())
