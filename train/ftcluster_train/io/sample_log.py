"""Which samples each step has taken, in the run's folder on the rank's host."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from ftcluster_common.launch import RESTART_VARIABLE


def log_samples(run_dir: Path, rank: int, step: int, samples: Sequence[int]) -> None:
    """Append one line to samples/rank-N.jsonl: restart, rank, step, and the samples' numbers.

    Call it before the step's all-reduce: once a step has changed the weights, each rank has logged
    it. A step that a failure cut short is logged again when it is repeated; the last one counts.
    """
    path = run_dir / "samples" / f"rank-{rank}.jsonl"
    path.parent.mkdir(exist_ok=True)
    restart = int(os.environ.get(RESTART_VARIABLE, "0"))
    line = {"restart": restart, "rank": rank, "step": step, "samples": list(samples)}
    with path.open("ab", buffering=0) as file:  # a whole line, or nothing
        file.write(json.dumps(line).encode() + b"\n")
