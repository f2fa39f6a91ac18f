"""Training speed of the stacks, side by side on this machine.

    .venv-dev/bin/python -m bench.stacks [STACK ...] [--turns N] [--steps N] [--folder DIR]

from the repository's root, after `./test unit` has made the environments.

Sets this machine up once for each stack, in separate folders that are kept below --folder, and
trains the recipe quickstart for some steps with each, and with IPEX's stack also without IPEX:
interleaved, medians. All runs start from the same weights and see the same batches.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.programs import FTCLUSTER

STACKS = ("native", "intel-2.8")


def main() -> int:
    """Measure, and print one JSON document; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stacks", nargs="*", default=list(STACKS))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp/ftcluster-bench-stacks"))
    options = parser.parse_args()
    for stack in options.stacks:
        run(options.folder, stack, "setup", "localhost", "--stack", stack,
            "-e", f"ftcluster_prefix={options.folder / stack}")  # fmt: skip
    found: dict[str, list[dict[str, Any]]] = {}
    for _ in range(options.turns):
        for stack in options.stacks:
            for ipex in ("auto", "false") if stack.startswith("intel") else ("auto",):
                words = run(options.folder, stack, "train", f"training.max_steps={options.steps}",
                            f"training.use_ipex={ipex}")  # fmt: skip
                name = stack + (" without IPEX" if ipex == "false" else "")
                found.setdefault(name, []).append(words)
                print(f"{name}: {words['samples_per_second']:.1f} samples/s", file=sys.stderr)
    first = statistics.median(r["samples_per_second"] for r in next(iter(found.values())))
    for name, runs in found.items():
        speed = statistics.median(r["samples_per_second"] for r in runs)
        print(f"{name:24} {speed:8.1f} samples/s  {speed / first:5.2f} x", file=sys.stderr)
    print(json.dumps({"cores": os.cpu_count(), "runs": found}))
    return 0


def run(folder: Path, stack: str, *arguments: str) -> dict[str, Any]:
    """Run a command with a separate state folder for the stack; return its JSON result."""
    environment = os.environ | {"XDG_STATE_HOME": str(folder / f"{stack}-state")}
    done = subprocess.run(
        [FTCLUSTER, *arguments, "--json"], env=environment, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


if __name__ == "__main__":
    sys.exit(main())
