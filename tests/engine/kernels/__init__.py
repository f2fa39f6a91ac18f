"""Tests of `ftcluster_kernels`; `./test kernels` runs only these tests."""
