"""Follow, list, stop and remove runs, fetch their models, and write reports about them."""
