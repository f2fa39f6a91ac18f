"""Training of text embeddings."""
