"""Programs that run in a rank or beside it."""
