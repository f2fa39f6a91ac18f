"""Tests of `ftcluster_kernels`: `./test kernels` runs them alone."""
