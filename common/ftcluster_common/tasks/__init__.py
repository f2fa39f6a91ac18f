"""The tasks: a module for each family, and their list in `registry`."""
