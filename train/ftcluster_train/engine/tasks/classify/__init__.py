"""Classes or a number of a text."""
