"""Training of sparse encoders (SPLADE)."""
