"""Registers the backend "impi" in a rank that ftcluster started.

    import ftcluster_train.mpi
    torch.distributed.init_process_group("impi")

mpirun must have started the ranks. torch 2.5 and newer imports this module automatically, through
an entry point. Outside of ftcluster, import `ftcluster_mpi` instead.
"""

from ftcluster_train.comm.torch_backends import register

register()
