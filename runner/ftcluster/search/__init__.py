"""Searches the settings of a training: what is tried next, and what is best. No I/O."""
