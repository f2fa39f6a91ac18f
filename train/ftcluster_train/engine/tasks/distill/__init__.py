"""Distillation of a classifier from a larger classifier."""
