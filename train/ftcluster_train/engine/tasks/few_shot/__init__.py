"""Classification of texts with few labels."""
