"""The tasks: raw data to token samples, batches, loss, predictions and metrics."""
