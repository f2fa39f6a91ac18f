"""Readers and writers for the files of a saved model."""
