"""Answers in a text."""
