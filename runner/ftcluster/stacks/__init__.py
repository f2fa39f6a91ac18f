"""Stacks: the sets of versions that match, and which of them have what a user asks for."""
