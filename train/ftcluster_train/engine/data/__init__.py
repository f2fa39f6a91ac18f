"""Conversion of raw data to token samples on disk, and the order of samples."""
