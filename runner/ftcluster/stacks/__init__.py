"""Stacks (sets of matching package versions), and the search for stacks with given versions."""
