"""Decoders that are fine-tuned on conversations and on preferences."""
