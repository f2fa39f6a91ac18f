"""Measure how fast a cluster trains and sums gradients."""
