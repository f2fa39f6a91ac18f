"""Setup, teardown and check of a cluster's hosts."""
