"""Kinds of training: raw data to token samples, batch, loss, predictions and metrics."""
