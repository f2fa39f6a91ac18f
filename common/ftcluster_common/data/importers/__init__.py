"""Readers of the files that annotation tools export, one module for each tool."""
