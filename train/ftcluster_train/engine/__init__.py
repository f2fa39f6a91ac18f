"""The training loop and what it uses."""
