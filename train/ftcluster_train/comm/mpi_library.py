"""mpi4py's MPI, which this process initializes and finalizes by itself.

mpi4py would call MPI_Finalize in every process that ends, and a rank that has failed would wait
there for others that wait for it.
"""

import mpi4py

mpi4py.rc.initialize = mpi4py.rc.finalize = False

from mpi4py import MPI  # noqa: E402 - the import acts on the settings above

__all__ = ["MPI"]
