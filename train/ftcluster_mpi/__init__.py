"""A backend of torch.distributed over MPI, for torch's own wheels.

    import ftcluster_mpi
    torch.distributed.init_process_group("impi")

mpirun must have started the ranks. Importing the package registers the backend, and sets RANK and
WORLD_SIZE from mpirun's variables if they are not set. The first group that is created loads MPI.
"""

from ftcluster_mpi.registration import NAME, register, use_rendezvous_variables

__all__ = ["NAME", "register"]

use_rendezvous_variables()
register()
