"""Follow, stop, fetch and report runs."""
