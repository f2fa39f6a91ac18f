"""Causal and masked language models."""
