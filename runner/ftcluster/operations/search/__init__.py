"""Search a recipe's settings: `sweep` for the best model, `tune` for the fastest launch."""
