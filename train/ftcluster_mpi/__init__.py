"""A backend of torch.distributed over MPI, for torch's own wheels.

    import ftcluster_mpi
    torch.distributed.init_process_group("impi")

mpirun must have started the ranks. Importing the package registers the backend; it loads MPI only
when the first group is made.
"""

from ftcluster_mpi.registration import NAME, register

__all__ = ["NAME", "register"]

register()
