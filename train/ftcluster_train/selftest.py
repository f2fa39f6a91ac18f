"""Two ranks on this host sum a tensor: `python -m ftcluster_train.selftest`."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from ftcluster_train.supervisor import rank_environment

RANKS = 2


def main() -> int:
    """Start the ranks, or be one of them; returns the exit code."""
    if "PMI_RANK" in os.environ:
        return _rank()
    bin_dir = Path(sys.executable).parent
    argv = [
        str(bin_dir / "mpirun"), "-n", str(RANKS), sys.executable, "-m", "ftcluster_train.selftest"
    ]  # fmt: skip
    environment = rank_environment({"FTCLUSTER_RUN": "selftest", "OMP_NUM_THREADS": "1"}, bin_dir)
    return subprocess.run(argv, env=environment, timeout=120, check=False).returncode


def _rank() -> int:
    import torch

    from ftcluster_train.world import join_world, leave_world, sum_over_ranks

    world = join_world()
    found = sum_over_ranks([float(world.rank + 1), 0.5])
    expected = [world.size * (world.size + 1) / 2, 0.5 * world.size]
    leave_world()
    if found != expected:
        print(f"rank {world.rank}: the sum over all ranks is {found}, not {expected}")
        return 1
    if world.rank == 0:
        print(
            f"sum over {world.size} ranks is right with {world.backend}; "
            f"torch {torch.__version__}, "
            f"transformers {version('transformers')}, ftcluster-train {version('ftcluster-train')}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
