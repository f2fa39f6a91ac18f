"""Passes damaged input to every reader of foreign text."""
