"""One training of bench/time_to_quality, in a separate process with the stack's Python.

    PYTHON -m bench.time_to_quality_run RUN_DIR OPTIONS

RUN_DIR has the job.json of a run; the tokens of its data are made there once. OPTIONS is an empty
JSON object. Prints one JSON object.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers.utils import logging

from ftcluster_common.protocol.job import read_job
from ftcluster_train.comm.world import World
from ftcluster_train.engine.data.run_inputs import read_inputs, write_inputs
from ftcluster_train.engine.loop import train
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.engine.rank import load

WORLD = World(rank=0, size=1, backend="gloo")


class CpuClock(ProgressLog):
    """A log that measures the CPU time of training without evaluations, and keeps the evaluations.

    Attributes:
        seconds: CPU seconds of all threads of this process, since it was made.
    """

    def __init__(self) -> None:
        super().__init__()
        self.curve: list[dict[str, Any]] = []
        self.steps = self.tokens = 0
        self.seconds = 0.0
        self._last = time.process_time()

    def write(self, event: str, **fields: Any) -> None:
        """Record an event; the engine calls this method after each step and each evaluation."""
        now = time.process_time()
        if event == "evaluation":
            self.curve.append(
                {"step": fields["step"], "cpu_seconds": self.seconds, **fields["metrics"]}
            )
        else:
            self.seconds += now - self._last
        self._last = now
        if event == "step":
            self.steps = fields["step"]
        if event == "communication":
            self.tokens = fields["tokens"]


def main() -> int:
    """Train once and return the exit code."""
    logging.set_verbosity_error()
    run_dir = Path(sys.argv[1])
    job = read_job(run_dir)
    write_inputs(run_dir, prepare(job))
    task, model, samples = load(job, read_inputs(run_dir))
    train_set = samples.pop("train")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    clock = CpuClock()
    result, _ = train(job, task, model, train_set, samples, WORLD, clock)
    found = {
        "metrics": result.metrics,
        "steps": clock.steps,
        "samples": len(train_set),  # samples per epoch
        "tokens": clock.tokens,  # tokens of all steps, with padding
        "cpu_seconds": clock.seconds,
        "seconds": result.train_seconds,
        "threads": torch.get_num_threads(),
        "curve": clock.curve,
    }
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
