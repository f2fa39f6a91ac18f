"""A classifier that learns from a larger one."""
