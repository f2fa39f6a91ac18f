"""What the snapshots of a training cost it.

    .venv-dev/bin/python -m bench.snapshots --data DIR [--turns N] [--seconds N] [--prefix DIR]
        [--results FILE]

from the repository's root, after `ftcluster setup localhost`. DIR has the folder shakespeare.

GPT-2 (124 million parameters, a state of 1.5 GB) is trained without snapshots and with one every
--seconds as long as they cost less than a hundredth of the time; each run in a process, with two
threads, interleaved. A snapshot's cost is the time that the training has waited for it, and the CPU
time of its writer over the threads.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.engine import CASES, Bench, machine, write
from ftcluster_common.job import Job

STEPS = 12
THREADS = 2


def main() -> int:
    """Measure, print and write the result; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=Job.snapshot_seconds)
    parser.add_argument("--prefix", type=Path, default=Path("/opt/ftcluster"))
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    bench = Bench(options.prefix, options.data.absolute(), Path(), THREADS)
    speeds: dict[float, list[float]] = {0.0: [], options.seconds: []}
    costs: list[float] = []
    with tempfile.TemporaryDirectory(dir=options.prefix) as folder:
        run_dir = bench.prepare(Path(folder) / "run", CASES["gpt2"].recipe)
        for _ in range(options.turns):
            for seconds, found in speeds.items():
                done = bench.run(
                    run_dir, engine="ours", steps=STEPS, leave_out=[], snapshot_seconds=seconds
                )
                found.append(done["samples_per_second"])
                costs += done["snapshots"]
                print(f"{seconds:g} s: {found[-1]:.3f} samples/s, {done}", file=sys.stderr)
    without, with_ = map(statistics.median, speeds.values())
    result: dict[str, Any] = {
        "machine": machine(),
        "samples_per_second": {f"{seconds:g}": found for seconds, found in speeds.items()},
        "ratio": with_ / without,
        "costs": costs,
    }
    print(f"speed with snapshots: {with_ / without:.3f} of that without")
    print(f"a snapshot costs {statistics.median(costs):.2f} s")
    write(options.results, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
