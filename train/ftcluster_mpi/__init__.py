"""A backend of torch.distributed over MPI, for torch's own wheels.

    import ftcluster_mpi
    torch.distributed.init_process_group("impi")

mpirun must have started the ranks. Importing the package registers the backend. If RANK and
WORLD_SIZE are not set, the import also sets them from mpirun's variables. MPI is loaded when the
first group is created.
"""

from ftcluster_mpi.registration import NAME, register, use_rendezvous_variables

__all__ = ["NAME", "register"]

use_rendezvous_variables()
register()
