"""From raw data to token samples on disk, and their order."""
