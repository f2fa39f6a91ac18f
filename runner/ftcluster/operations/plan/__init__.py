"""Plan a training and describe its data and recipes, before anything starts."""
