"""New processes for ranks, forked from a process that has already imported the packages.

It takes seconds of CPU time to import torch and transformers: this way once for all tests.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

PATHS = "FTCLUSTER_TEST_PATHS"  # the fork server of Python 3.11 does not inherit sys.path


def start(work: Callable[..., None], count: int, *arguments: Any) -> None:
    """Call `work` with 0, 1, ... and arguments in `count` new processes, and wait for them.

    Raises:
        torch.multiprocessing.ProcessException: one of them failed.
    """
    # not imported at the top: torch loads the hosts' package, and preloaded.py must set the path
    # first
    import torch.multiprocessing as mp

    os.environ[PATHS] = os.pathsep.join(sys.path)
    mp.get_context("forkserver").set_forkserver_preload(["tests.engine.preloaded"])
    mp.start_processes(work, arguments, count, start_method="forkserver")
