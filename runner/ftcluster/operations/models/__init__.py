"""Use a trained model."""
