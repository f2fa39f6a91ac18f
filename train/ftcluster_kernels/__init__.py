"""Faster CPU versions of torch functions; they depend on no model and replace nothing in torch."""
