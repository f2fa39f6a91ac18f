"""Makes the backend over Intel MPI known to torch.distributed, which imports it: see `mpi`."""

import importlib.util
from typing import Any

from ftcluster_common.launch import CCL, IMPI
from ftcluster_train.comm import oneccl


def register() -> None:
    """Register the backends; MPI is loaded where a group is made."""
    import torch.distributed as dist

    backends = {IMPI: _make_group}
    if not importlib.util.find_spec(oneccl.MODULE):  # it could not register its own any more
        backends[CCL] = _explain_ccl
    for name in backends.keys() - dist.Backend.backend_list:
        dist.Backend.register_backend(name, backends[name], devices=["cpu"])


def _make_group(*arguments: Any) -> Any:
    from ftcluster_train.comm.mpi_group import MpiGroup  # loads MPI

    return MpiGroup(*arguments)


def _explain_ccl(*_: Any) -> Any:
    """What a script gets that asks for "ccl" where there is no oneccl_bind_pt."""
    import torch.distributed as dist

    raise dist.DistBackendError(
        "the stack does not have oneccl_bind_pt, so there is no backend ccl: use impi, which is "
        'also Intel MPI\'s, or gloo; os.environ["FTCLUSTER_BACKEND"] is the planned one. Stacks '
        "that have it: ftcluster stacks"
    )
