"""Recipes: the model, data and settings of a training."""
