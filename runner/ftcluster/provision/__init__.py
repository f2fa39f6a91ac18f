"""Setup, teardown and check."""
