"""Decoders that are tuned on conversations and on preferences."""
