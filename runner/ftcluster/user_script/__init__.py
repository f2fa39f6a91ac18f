"""A user's own training script: its command, its files, and what it needs of a stack."""
