"""Measure the speed of training and of gradient averaging on a cluster."""
