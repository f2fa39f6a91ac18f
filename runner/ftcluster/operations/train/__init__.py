"""Plan and run a training or a script."""
