"""Metrics from predictions and labels."""
