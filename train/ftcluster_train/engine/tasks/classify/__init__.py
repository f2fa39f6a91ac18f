"""Text classification and regression."""
