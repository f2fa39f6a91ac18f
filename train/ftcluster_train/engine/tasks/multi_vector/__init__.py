"""Training of multi-vector encoders (ColBERT)."""
