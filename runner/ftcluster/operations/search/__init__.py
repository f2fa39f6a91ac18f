"""Search a recipe's settings: `sweep` finds the best model, `tune` the fastest launch."""
