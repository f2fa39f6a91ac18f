"""Register the backend with torch.distributed. The first group that is made loads MPI."""

import sys
from collections.abc import Callable
from typing import Any

NAME = "impi"


def _print_lost(message: str, hint: str) -> None:
    print(f"{message}; {hint}", file=sys.stderr, flush=True)


report_lost: Callable[[str, str], None] = _print_lost


def report_lost_with(report: Callable[[str, str], None]) -> None:
    """Have `report(message, hint)` called when this process ends without the other ranks.

    By default both are printed to stderr. A launcher that parses its ranks' output can format them.
    """
    global report_lost
    report_lost = report


def register() -> None:
    """Make `dist.init_process_group("impi")` possible; no effect if the name is registered."""
    import torch.distributed as dist

    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _make_group, devices=["cpu"])


def _make_group(*arguments: Any) -> Any:
    from ftcluster_mpi.group import MpiGroup  # loads MPI

    return MpiGroup(*arguments)
