"""Rows of data files: how they are read, checked and shown."""
