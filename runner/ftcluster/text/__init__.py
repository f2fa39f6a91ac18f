"""Text for terminals and command lines."""
