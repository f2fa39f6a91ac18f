"""Makes the backend over Intel MPI known to torch.distributed."""

import importlib.util
from typing import Any

import torch.distributed as dist

from ftcluster_common.launch import CCL, IMPI
from ftcluster_train.distributed import oneccl


def register() -> None:
    """Register the backends; MPI is loaded where a group is made."""
    for name, make in ((IMPI, _make_group), (CCL, _explain_ccl)):
        if name not in dist.Backend.backend_list:
            dist.Backend.register_backend(name, make, devices=["cpu"])


def _make_group(*arguments: Any) -> Any:
    from ftcluster_train.distributed.mpi_group import MpiGroup  # loads MPI

    return MpiGroup(*arguments)


def _explain_ccl(*_: Any) -> Any:
    """What a script gets that asks for "ccl" without having imported oneccl_bind_pt."""
    if importlib.util.find_spec(oneccl.MODULE):
        raise dist.DistBackendError(f"the backend ccl needs `import {oneccl.MODULE}` before it")
    raise dist.DistBackendError(
        "the stack does not have oneccl_bind_pt, so there is no backend ccl: use impi, which is "
        'also Intel MPI\'s, or gloo; os.environ["FTCLUSTER_BACKEND"] is the planned one. Stacks '
        "that have it: ftcluster stacks"
    )
