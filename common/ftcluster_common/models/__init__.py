"""The files of a saved model."""
