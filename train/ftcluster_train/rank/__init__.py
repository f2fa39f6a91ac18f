"""Programs that run in a rank, or as the parent of a rank."""
