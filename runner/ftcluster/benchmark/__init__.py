"""Benchmarks of a cluster; each benchmark starts runs and measures them."""
