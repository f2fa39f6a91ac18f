"""Language models: of the next token, and of masked ones."""
