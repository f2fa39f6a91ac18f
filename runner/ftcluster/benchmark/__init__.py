"""Benchmarks of a cluster, measured by runs of their own."""
