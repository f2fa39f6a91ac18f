"""Tests of `ftcluster_mpi`: `./test mpi` runs them alone."""
