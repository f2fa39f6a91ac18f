"""Helpers for text on terminals and in command lines."""
