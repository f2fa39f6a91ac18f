"""Generation of texts from texts, with an encoder and a decoder."""
