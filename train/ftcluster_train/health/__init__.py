"""Checks and measurements of a cluster: versions, all-reduce, links, compute speed."""
