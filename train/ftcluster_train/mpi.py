"""A backend for torch.distributed over Intel MPI, for torch's own wheels.

    import ftcluster_train.mpi
    torch.distributed.init_process_group("impi")

The ranks have to be started by mpirun.
"""

import torch.distributed as dist

from ftcluster_train.distributed.mpi_group import NAME, MpiGroup

if NAME not in dist.Backend.backend_list:
    dist.Backend.register_backend(NAME, MpiGroup, devices=["cpu"])
