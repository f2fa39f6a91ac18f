"""Generation of texts from texts, with encoder-decoder models."""
