"""A backend for torch.distributed over Intel MPI, for torch's own wheels.

    import ftcluster_train.mpi
    torch.distributed.init_process_group("impi")

The ranks have to be started by mpirun. torch 2.5 and newer imports this module by itself, by its
entry point.
"""

from ftcluster_train.comm.torch_backends import register

register()
