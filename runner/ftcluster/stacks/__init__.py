"""Stacks: sets of matching versions, and the search for stacks with certain versions."""
