"""Tests of `ftcluster_mpi`; `./test mpi` runs only these tests."""
