"""Registers the backend with torch.distributed; MPI is loaded when the first group is created."""

import hashlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

NAME = "impi"


def _print_lost(message: str, hint: str) -> None:
    print(f"{message}; {hint}", file=sys.stderr, flush=True)


report_lost: Callable[[str, str], None] = _print_lost


def report_lost_with(report: Callable[[str, str], None]) -> None:
    """Call `report(message, hint)` if this process ends without the other ranks.

    By default, message and hint are printed to stderr. A launcher that parses its ranks' output can
    print them in its own format instead.
    """
    global report_lost
    report_lost = report


def register() -> None:
    """Enable `dist.init_process_group("impi")`; do nothing if the name is already registered."""
    import torch.distributed as dist

    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _make_group, devices=["cpu"])


def rendezvous_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return torch's variables for `env://`, derived from mpirun's variables.

    Hydra, the launcher of Intel MPI and MPICH, sets PMI_RANK and PMI_SIZE for each rank. If all
    ranks are on this host, the rendezvous is also on this host, at a port that depends on the job.
    If RANK is set, the launcher has set the other variables too, so the result is empty.
    """
    if "RANK" in environ or not {"PMI_RANK", "PMI_SIZE"} <= environ.keys():
        return {}
    variables = {"RANK": environ["PMI_RANK"], "WORLD_SIZE": environ["PMI_SIZE"]}
    if environ.get("MPI_LOCALNRANKS") == environ["PMI_SIZE"] and "MASTER_ADDR" not in environ:
        job = environ.get("I_MPI_HYDRA_UUID", "")
        number = int.from_bytes(hashlib.sha256(job.encode()).digest()[:4])
        variables["MASTER_ADDR"] = "127.0.0.1"
        if "MASTER_PORT" not in environ:  # below the ephemeral ports of Linux
            variables["MASTER_PORT"] = str(20000 + number % 9000)
    return variables


def use_rendezvous_variables() -> None:
    """Set torch's variables in this process if only mpirun's are set."""
    os.environ.update(rendezvous_variables(os.environ))


def _make_group(*arguments: Any) -> Any:
    from ftcluster_mpi.group import MpiGroup  # loads MPI

    return MpiGroup(*arguments)
