"""Rows of data files: reading, checking and displaying them."""
