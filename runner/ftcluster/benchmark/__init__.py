"""Measures a cluster by runs of its own."""
