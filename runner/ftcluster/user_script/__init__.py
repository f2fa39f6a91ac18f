"""A user's own training script: its command, its files, and the packages it needs."""
