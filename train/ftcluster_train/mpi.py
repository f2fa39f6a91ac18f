"""The backend "impi" in a rank of ftcluster.

    import ftcluster_train.mpi
    torch.distributed.init_process_group("impi")

mpirun must have started the ranks. torch 2.5 and newer imports this module automatically, through
an entry point. `ftcluster_mpi` is the backend alone.
"""

from ftcluster_train.comm.torch_backends import register

register()
