"""Load, evaluate, export and upload a trained model, and predict or generate with it."""
