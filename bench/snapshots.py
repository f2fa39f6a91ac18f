"""The cost of snapshots of a training's state.

    PREFIX/current/bin/python -m bench.snapshots [--threads N] [--turns N] [--results FILE]

from the repository's root, after `ftcluster setup localhost`. The state belongs to GPT-2 (124
million parameters, 1.5 GB), in memory; the snapshots are written to the folder for temporary files.
The cost is the time that the training waits for the copy, and the CPU time of the thread that
writes it over the threads of the training.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

import torch

from bench.machines import cpu
from ftcluster_common.protocol.job import Job
from ftcluster_train.comm.world import World
from ftcluster_train.engine import snapshots as module
from ftcluster_train.engine.optim.base import State
from ftcluster_train.engine.train_state import TrainState

PARAMETERS = 124_440_000


class Optimizer:
    """A stand-in for an optimizer step."""

    def __init__(self) -> None:
        names = ("master_weights", "exp_avg_0", "exp_avg_sq_0")
        self._state = State.of({name: torch.randn(PARAMETERS) for name in names})

    def state(self) -> State:
        """Return a state like OptimizerStep.state."""
        return self._state


def main() -> int:
    """Measure, print and write the result; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    module.COST_SHARE, module.MEMORY_SHARE = float("inf"), 1.0
    optimizer = Optimizer()
    with tempfile.TemporaryDirectory() as folder:
        snapshots = module.Snapshots(Path(folder), 1e-9, False, World(0, 1, "gloo"), print)
        for step in range(1 + options.turns):  # the first step also allocates the memory
            snapshots.take(optimizer, TrainState(step))  # type: ignore[arg-type]
            snapshots.wait()
    cost = statistics.median(snapshots.costs[1:])
    every = max(Job.snapshot_seconds, 100 * cost)
    print(f"{cost:.2f} s with {options.threads} threads: a snapshot every {every:.0f} s")
    if options.results:
        found = {"machine": {**cpu(), "threads": options.threads}, "costs": snapshots.costs}
        options.results.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
