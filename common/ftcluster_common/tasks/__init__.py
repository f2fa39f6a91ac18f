"""The tasks, a module for each family, and the list of them in `registry`."""
