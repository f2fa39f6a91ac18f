"""Tasks, which convert data to batches, and compute losses, predictions and metrics."""
