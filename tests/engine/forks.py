"""New processes for ranks, forked from one that has imported what they need.

It takes seconds of CPU time to import torch and transformers: this way once for all tests.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

PATHS = "FTCLUSTER_TEST_PATHS"  # Python 3.11's server of forks does not get the sys.path


def start(work: Callable[..., None], count: int, *arguments: Any) -> None:
    """Call `work` with 0, 1, ... and arguments in `count` new processes, and wait for them.

    Raises:
        torch.multiprocessing.ProcessException: one of them failed.
    """
    # not above: torch loads the hosts' package, and preloaded.py has to say first from where
    import torch.multiprocessing as mp

    os.environ[PATHS] = os.pathsep.join(sys.path)
    mp.get_context("forkserver").set_forkserver_preload(["tests.engine.preloaded"])
    mp.start_processes(work, arguments, count, start_method="forkserver")
