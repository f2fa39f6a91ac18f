"""Faster CPU versions of torch functions. They work with any model, and patch nothing in torch."""
