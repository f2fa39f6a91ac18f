"""Scores of a query and a text."""
